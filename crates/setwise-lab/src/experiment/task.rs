//! Tasks: which examples are drawn and how they are labelled.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use setwise::data::Scale;
use setwise::distributions::{IntRange, MixtureLaw};
use setwise::models::ModelConfig;
use setwise::sets::{Append, Axes, Coordinates};

use super::curriculum::Phase;
use super::recorded::{AlignCaptionsTask, AlignWordsTask, CountTask, DistinguishImagesTask};
use super::settings::bad;
use crate::Result;
use crate::datasets::{DataFolder, Picker};
use crate::samplers::{BroadPairs, Dependence, Divergence, Label, SameMixture, Sampler};

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
    /// How many characters are in two sets of images of them.
    Count(CountTask),
    /// Whether two sets of images are of one class or of two.
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
    pub equivariant_dims: Option<IntRange>,
    /// Points of each set, drawn for each on its own.
    pub set_size: IntRange,
    /// The axes in which models see the sets.
    #[serde(default)]
    pub axes: Axes,
    /// The columns appended to the coordinates of a point. Dimension-equivariant models do not see them.
    #[serde(default, skip_serializing_if = "Append::is_empty")]
    pub append: Append,
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
    pub equivariant_dims: Option<IntRange>,
    /// Points of both sets.
    pub set_size: IntRange,
    /// Range of the correlation ρ.
    pub rho: [f64; 2],
}

/// See [`Task::BroadKl`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BroadKlTask {
    /// Coordinates of a point; models for one dimension only take the most.
    pub dims: IntRange,
    /// Points of each set; logarithms are uniform.
    pub set_size: IntRange,
    /// The largest divergence.
    pub max_divergence: f64,
}

/// See [`Task::Distinguish`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DistinguishTask {
    /// Coordinates of a point.
    pub dim: usize,
    /// Dimensions a dimension-equivariant model is trained across; `dim` alone if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivariant_dims: Option<IntRange>,
    /// Points of each set, drawn for each on its own.
    pub set_size: IntRange,
    /// The law of the mixtures.
    #[serde(default)]
    pub mixture: MixtureLaw,
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
            Task::BroadKl(t) => vec![t.dims.max; 2],
            Task::Distinguish(t) => vec![t.dim; 2],
            Task::AlignWords(t) => vec![t.width; 2],
            Task::AlignCaptions(t) => t.widths.to_vec(),
            Task::Count(_) | Task::DistinguishImages(_) => {
                let shape = self.image_shape().expect("a task on images");
                vec![shape.iter().product(); 2]
            }
        }
    }

    /// Height, width and channels, where elements are images: rows of pixels with their channels side by side, from 0 to 1.
    pub fn image_shape(&self) -> Option<[usize; 3]> {
        match self {
            Task::Count(t) => Some(t.image_shape()),
            Task::DistinguishImages(t) => Some(t.image_shape()),
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
    pub fn equivariant_dims(&self) -> Option<IntRange> {
        let (dims, dim) = match self {
            Task::Kl(t) => (t.equivariant_dims, t.dim),
            Task::Mi(t) => (t.equivariant_dims, t.dim),
            Task::BroadKl(t) => (Some(t.dims), t.dims.max),
            Task::Distinguish(t) => (t.equivariant_dims, t.dim),
            Task::AlignWords(_) | Task::AlignCaptions(_) | Task::Count(_) | Task::DistinguishImages(_) => return None,
        };
        Some(dims.unwrap_or(IntRange::new(dim, dim)))
    }

    /// Dimensions that models of any dimension are judged by.
    pub fn held_out_dims(&self) -> IntRange {
        match self {
            Task::BroadKl(t) => t.dims,
            _ => IntRange::new(self.dim(), self.dim()),
        }
    }

    /// Points of a set.
    pub fn set_size(&self) -> IntRange {
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

    /// The coordinates in which a model sees the sets of an example.
    pub fn coordinates(&self, model: &ModelConfig) -> Coordinates {
        match self {
            Task::Kl(t) if model.dimension_equivariant => Coordinates::of(t.axes),
            Task::Kl(t) => Coordinates { axes: t.axes, append: t.append },
            Task::BroadKl(_) => Coordinates::of(Axes::Canonical),
            _ => Coordinates::RAW,
        }
    }

    /// How rows are scaled.
    pub fn scale(&self) -> Scale {
        match self {
            Task::AlignWords(t) => t.scale,
            Task::AlignCaptions(t) => t.scale,
            _ => Scale::None,
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

    /// Whether two tasks are judged by the same examples: they may differ in scaling, in whitened or canonical axes, in appended
    /// columns, and in the size of images.
    pub fn same_examples(&self, other: &Task) -> bool {
        let plain = |task: &Task| {
            let mut task = task.clone();
            match &mut task {
                Task::Kl(t) if t.axes != Axes::Raw => (t.axes, t.append) = (Axes::Whitened, Append::default()),
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
            (Task::BroadKl(t), _) => Arc::new(BroadPairs { max_divergence: t.max_divergence }),
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
        let dims =
            self.equivariant_dims().map_or(vec![], |d| vec![("equivariant-dims", d.min), ("equivariant-dims", d.max)]);
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
                if t.axes == Axes::Raw && !t.append.is_empty() {
                    let reason = "is not empty, but nothing is appended to raw axes; choose whitened or canonical axes";
                    return Err(bad("task.append", reason));
                }
                if let Label::True { points } = t.label
                    && (points == 0 || points > LARGEST)
                {
                    return Err(bad("task.label.true.points", format!("is {points}, must be between 1 and {LARGEST}")));
                }
            }
            Task::BroadKl(t) => {
                if !(t.max_divergence >= 1.0 && t.max_divergence <= 1e3) {
                    return Err(bad(
                        "task.max-divergence",
                        format!("is {}, must be between 1 and 1000", t.max_divergence),
                    ));
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
    if m.components.min == 0 || m.components.max > 10_000 {
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
pub(super) fn check_size(key: &str, size: IntRange) -> Result<()> {
    if size.min == 0 || size.max > LARGEST {
        let reason = format!("is [{}, {}], must be between 1 and {LARGEST}", size.min, size.max);
        return Err(bad(key, reason));
    }
    Ok(())
}
