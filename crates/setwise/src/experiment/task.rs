//! Tasks: which examples are drawn and how they are labelled.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::recorded::{AlignCaptionsTask, AlignWordsTask, CountTask, DistinguishImagesTask};
use super::settings::bad;
use super::training::Phase;
use crate::Result;
use crate::data::{
    Broad, DataFolder, Dependence, Divergence, Label, MixtureLaw, Picker, SameMixture, Sampler, Scale, Span,
};
use crate::models::ModelConfig;
use crate::sets::{Beside, Frame};

/// The examples of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Task {
    /// KL divergence of two samples of Gaussian mixtures.
    Kl(KlTask),
    /// Mutual information of correlated Gaussians.
    Mi(MiTask),
    /// KL divergence of two samples of very different distributions, in coordinates no affine map changes.
    BroadKl(BroadKlTask),
    /// Whether two samples are of one Gaussian mixture or of two.
    Distinguish(DistinguishTask),
    /// Whether the words of a set translate those of another.
    AlignWords(AlignWordsTask),
    /// Whether the captions of a set are those of a set of images.
    AlignCaptions(AlignCaptionsTask),
    /// How many characters are in two sets of pictures of them.
    Count(CountTask),
    /// Whether two sets of pictures are of one class or of two.
    DistinguishImages(DistinguishImagesTask),
}

/// What answers are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// How far they are from labels.
    Distance,
    /// Labels are counts. An answer is right where the label is the whole number just below or just above it, and strictly right where
    /// the label is the nearest.
    Count,
    /// Labels are 0 or 1 and answers the logit of 1. An answer is right on the label's side; its distance is that of the probability.
    Decision,
}

/// What draws the examples of a task.
#[derive(Clone)]
pub(super) enum Source {
    /// From random distributions.
    Generated(Arc<dyn Sampler>),
    /// From recorded data.
    Recorded(Arc<dyn Picker>),
    /// Recorded data that has not been loaded.
    Absent,
}

/// See [`Task::Kl`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KlTask {
    /// Coordinates of a point.
    pub dim: usize,
    /// Dimensions a dimension-equivariant model is trained across; `dim` alone if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivariant_dims: Option<Span>,
    /// Points of each set, drawn for each on its own.
    pub set_size: Span,
    /// Whether the two sets are whitened together.
    #[serde(default = "yes")]
    pub whiten: bool,
    /// Whether whitened sets are also turned to axes of their own, in which affine maps of the data change nothing at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub turn: bool,
    /// Whether points keep the coordinates they come in beside those of the whitened sets. Models of any dimension, to which all coordinates
    /// are alike, do not see them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
    /// Whether log densities of Gaussian mixtures fitted to each set stand beside every point ([`Beside`]); as with `own`, not for models
    /// of any dimension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fits: bool,
    /// What is to be learnt.
    #[serde(default = "on_sample")]
    pub label: Label,
    /// The law of the mixtures.
    #[serde(default)]
    pub mixture: MixtureLaw,
}

/// See [`Task::Mi`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MiTask {
    /// Coordinates of a point.
    pub dim: usize,
    /// Dimensions a dimension-equivariant model is trained across; `dim` alone if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivariant_dims: Option<Span>,
    /// Points of both sets.
    pub set_size: Span,
    /// Range of the correlation ρ.
    pub rho: [f64; 2],
}

/// See [`Task::BroadKl`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BroadKlTask {
    /// Coordinates of a point; models for one dimension only take the most.
    pub dims: Span,
    /// Points of each set; logarithms are uniform.
    pub set_size: Span,
    /// The largest divergence.
    pub largest: f64,
}

/// See [`Task::Distinguish`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DistinguishTask {
    /// Coordinates of a point.
    pub dim: usize,
    /// Dimensions a dimension-equivariant model is trained across; `dim` alone if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivariant_dims: Option<Span>,
    /// Points of each set, drawn for each on its own.
    pub set_size: Span,
    /// The law of the mixtures.
    #[serde(default)]
    pub mixture: MixtureLaw,
}

fn yes() -> bool {
    true
}

fn on_sample() -> Label {
    Label::Sample
}

/// Largest set and widest point an experiment may ask for.
const LARGEST: usize = 1 << 20;
const WIDEST: usize = 1 << 16;

impl Task {
    /// What is wrong in the table of the task, with its place: a choice by `kind` is read without places, its fields alone with them. None
    /// where nothing is.
    pub(super) fn error_in(text: &str) -> Option<toml::de::Error> {
        let task = DeTable::parse(text).ok()?.into_inner().remove("task")?;
        let (span, DeValue::Table(mut table)) = (task.span(), task.into_inner()) else { return None };
        let kind = table.remove("kind")?;
        let fields = toml::de::Deserializer::from(Spanned::new(span, table));
        let read = match kind.get_ref().as_str()? {
            "kl" => KlTask::deserialize(fields).map(drop),
            "mi" => MiTask::deserialize(fields).map(drop),
            "broad-kl" => BroadKlTask::deserialize(fields).map(drop),
            "distinguish" => DistinguishTask::deserialize(fields).map(drop),
            "align-words" => AlignWordsTask::deserialize(fields).map(drop),
            "align-captions" => AlignCaptionsTask::deserialize(fields).map(drop),
            "count" => CountTask::deserialize(fields).map(drop),
            "distinguish-images" => DistinguishImagesTask::deserialize(fields).map(drop),
            _ => return None,
        };
        let mut error = read.err()?;
        error.set_input(Some(text));
        Some(error)
    }

    /// Numbers in a row of each set.
    pub fn widths(&self) -> Vec<usize> {
        match self {
            Task::Kl(t) => vec![t.dim; 2],
            Task::Mi(t) => vec![t.dim; 2],
            Task::BroadKl(t) => vec![t.dims.most; 2],
            Task::Distinguish(t) => vec![t.dim; 2],
            Task::AlignWords(t) => vec![t.width; 2],
            Task::AlignCaptions(t) => t.widths.to_vec(),
            Task::Count(_) | Task::DistinguishImages(_) => {
                let picture = self.picture().expect("a task on pictures");
                vec![picture.iter().product(); 2]
            }
        }
    }

    /// Height, width and channels, where elements are pictures: rows of pixels with their channels side by side, from 0 to 1.
    pub fn picture(&self) -> Option<[usize; 3]> {
        match self {
            Task::Count(t) => Some(t.picture()),
            Task::DistinguishImages(t) => Some(t.picture()),
            _ => None,
        }
    }

    /// Coordinates of a point, of the first set where they differ.
    pub fn dim(&self) -> usize {
        self.widths()[0]
    }

    /// The dimension presets take their sizes from: that of the points, or a usual one where they are records.
    pub(super) fn preset_dim(&self) -> usize {
        if self.equivariant_dims().is_some() { self.dim() } else { 8 }
    }

    /// Dimensions that models of any dimension are trained across; none where coordinates are not alike.
    pub fn equivariant_dims(&self) -> Option<Span> {
        let (dims, dim) = match self {
            Task::Kl(t) => (t.equivariant_dims, t.dim),
            Task::Mi(t) => (t.equivariant_dims, t.dim),
            Task::BroadKl(t) => (Some(t.dims), t.dims.most),
            Task::Distinguish(t) => (t.equivariant_dims, t.dim),
            Task::AlignWords(_) | Task::AlignCaptions(_) | Task::Count(_) | Task::DistinguishImages(_) => return None,
        };
        Some(dims.unwrap_or(Span::new(dim, dim)))
    }

    /// Dimensions that models of any dimension are judged by.
    pub fn held_out_dims(&self) -> Span {
        match self {
            Task::BroadKl(t) => t.dims,
            _ => Span::new(self.dim(), self.dim()),
        }
    }

    /// Points of a set.
    pub fn set_size(&self) -> Span {
        match self {
            Task::Kl(t) => t.set_size,
            Task::Mi(t) => t.set_size,
            Task::BroadKl(t) => t.set_size,
            Task::Distinguish(t) => t.set_size,
            Task::AlignWords(t) => t.set_size,
            Task::AlignCaptions(t) => t.set_size,
            Task::Count(t) => t.set_size,
            Task::DistinguishImages(t) => t.set_size,
        }
    }

    /// The coordinates a model sees the sets of an example in.
    pub fn frame(&self, model: &ModelConfig) -> Frame {
        match self {
            Task::Kl(t) if t.whiten => {
                let seen = !model.dimension_equivariant;
                let beside = Beside { own: t.own && seen, fits: t.fits && seen };
                if t.turn { Frame::Canonical(beside) } else { Frame::Whitened(beside) }
            }
            Task::BroadKl(_) => Frame::Canonical(Beside::default()),
            _ => Frame::Own,
        }
    }

    /// What answers are judged by.
    pub fn metric(&self) -> Metric {
        match self {
            Task::Kl(_) | Task::Mi(_) | Task::BroadKl(_) => Metric::Distance,
            Task::Count(_) => Metric::Count,
            Task::Distinguish(_) | Task::AlignWords(_) | Task::AlignCaptions(_) | Task::DistinguishImages(_) => {
                Metric::Decision
            }
        }
    }

    /// Whether two tasks are judged by the same examples: they may differ in how rows are scaled or turned, in what stands
    /// beside them, and in how pictures are sized.
    pub fn same_examples(&self, other: &Task) -> bool {
        let plain = |task: &Task| {
            let mut task = task.clone();
            match &mut task {
                Task::Kl(t) => (t.turn, t.own, t.fits) = (false, false, false),
                Task::AlignWords(t) => t.scale = Scale::None,
                Task::AlignCaptions(t) => t.scale = Scale::None,
                Task::Count(t) => t.side = None,
                _ => {}
            }
            task
        };
        plain(self) == plain(other)
    }

    /// What draws the examples; recorded data is loaded from a folder, if there is one.
    pub(super) fn source(&self, data: Option<&DataFolder>) -> Result<Source> {
        let generated: Arc<dyn Sampler> = match (self, data) {
            (Task::Kl(t), _) => Arc::new(Divergence { mixture: t.mixture.clone(), label: t.label }),
            (Task::Mi(t), _) => Arc::new(Dependence { rho: t.rho }),
            (Task::BroadKl(t), _) => Arc::new(Broad { largest: t.largest }),
            (Task::Distinguish(t), _) => Arc::new(SameMixture { mixture: t.mixture.clone() }),
            (_, None) => return Ok(Source::Absent),
            (Task::AlignWords(t), Some(data)) => return Ok(Source::Recorded(t.load(data)?)),
            (Task::AlignCaptions(t), Some(data)) => return Ok(Source::Recorded(t.load(data)?)),
            (Task::Count(t), Some(data)) => return Ok(Source::Recorded(t.load(data)?)),
            (Task::DistinguishImages(t), Some(data)) => return Ok(Source::Recorded(t.load(data)?)),
        };
        Ok(Source::Generated(generated))
    }

    /// What draws the examples of a phase, where it has others than the task.
    pub(super) fn easier(&self, phase: &Phase) -> Option<Source> {
        let sampler: Arc<dyn Sampler> = match self {
            Task::Kl(t) => Arc::new(Divergence { mixture: phase.mixture.as_ref()?.of(&t.mixture), label: t.label }),
            Task::Mi(_) => Arc::new(Dependence { rho: phase.rho? }),
            _ => return None,
        };
        Some(Source::Generated(sampler))
    }

    pub(super) fn check(&self) -> Result<()> {
        if let Task::Count(t) = self {
            // Before its width, which is a square.
            t.check()?;
        }
        let dims = self
            .equivariant_dims()
            .map_or(vec![], |d| vec![("equivariant-dims", d.least), ("equivariant-dims", d.most)]);
        let widths = self.widths().into_iter().map(|w| (if dims.is_empty() { "width" } else { "dim" }, w));
        for (key, n) in widths.chain(dims.clone()) {
            if n == 0 || n > WIDEST {
                let key = if matches!(self, Task::BroadKl(_)) { "dims" } else { key };
                return Err(bad(format!("task.{key}"), format!("is {n}, must be between 1 and {WIDEST}")));
            }
        }
        check_size("task.set-size", self.set_size())?;
        match self {
            Task::Kl(t) => {
                check_mixture("task.mixture", &t.mixture)?;
                if t.turn && !t.whiten {
                    return Err(bad("task.turn", "needs `whiten = true`: it is the whitened sets that are turned"));
                }
                if t.own && !t.whiten {
                    return Err(bad("task.own", "needs `whiten = true`: without it points have no other coordinates"));
                }
                if t.fits && !t.whiten {
                    return Err(bad("task.fits", "needs `whiten = true`: mixtures are fitted to whitened sets"));
                }
                if let Label::True { points } = t.label
                    && (points == 0 || points > LARGEST)
                {
                    return Err(bad("task.label.true.points", format!("is {points}, must be between 1 and {LARGEST}")));
                }
            }
            Task::BroadKl(t) => {
                if !(t.largest >= 1.0 && t.largest <= 1e3) {
                    return Err(bad("task.largest", format!("is {}, must be between 1 and 1000", t.largest)));
                }
            }
            Task::Distinguish(t) => check_mixture("task.mixture", &t.mixture)?,
            Task::AlignCaptions(t) => t.check()?,
            Task::Count(_) | Task::AlignWords(_) => {}
            Task::DistinguishImages(t) => t.check()?,
            Task::Mi(t) => check_rho("task.rho", t.rho)?,
        }
        Ok(())
    }
}

/// Laws of mixtures, under the key `at`.
pub(super) fn check_mixture(at: &str, m: &MixtureLaw) -> Result<()> {
    if m.components.least == 0 || m.components.most > 10_000 {
        return Err(bad(format!("{at}.components"), "must be between 1 and 10000"));
    }
    if !(m.concentration > 0.0 && m.concentration <= 1e6) {
        let reason = format!("is {}, must be above 0 and at most 1e6", m.concentration);
        return Err(bad(format!("{at}.concentration"), reason));
    }
    if !(0.0..=10.0).contains(&m.log_scale_sd) {
        let reason = format!("is {}, must be between 0 and 10", m.log_scale_sd);
        return Err(bad(format!("{at}.log-scale-sd"), reason));
    }
    if !(m.spread > 0.0 && m.spread <= 1e6) {
        return Err(bad(format!("{at}.spread"), format!("is {}, must be above 0 and at most 1e6", m.spread)));
    }
    Ok(())
}

/// Correlations are a range and below one.
pub(super) fn check_rho(key: &str, [a, b]: [f64; 2]) -> Result<()> {
    if !(a > -1.0 && a <= b && b < 1.0) {
        return Err(bad(key, format!("is [{a}, {b}], must be an ordered range inside (-1, 1)")));
    }
    Ok(())
}

/// Sets may not be empty nor larger than memory.
pub(super) fn check_size(key: &str, size: Span) -> Result<()> {
    if size.least == 0 || size.most > LARGEST {
        let reason = format!("is [{}, {}], must be between 1 and {LARGEST}", size.least, size.most);
        return Err(bad(key, reason));
    }
    Ok(())
}
