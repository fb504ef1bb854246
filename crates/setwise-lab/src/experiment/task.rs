//! Tasks: the examples of an experiment and their labels.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use setwise::data::Scale;
use setwise::distributions::{IntRange, MixtureLaw};
use setwise::models::ModelConfig;
use setwise::sets::{Append, Axes, Coordinates};

use super::config::bad;
use super::curriculum::Phase;
use super::dataset_tasks::{AlignCaptionsTask, AlignWordsTask, CountTask, DistinguishImagesTask};
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
    /// KL divergence of two samples from many families of distributions, in affine-invariant coordinates.
    BroadKl(BroadKlTask),
    /// Whether two samples come from one Gaussian mixture or from two.
    Distinguish(DistinguishTask),
    /// Whether the words of one set translate the words of the other.
    AlignWords(AlignWordsTask),
    /// Whether a set of captions describes a set of images.
    AlignCaptions(AlignCaptionsTask),
    /// The number of characters that are in both of two sets of images.
    Count(CountTask),
    /// Whether two sets of images have the same class.
    DistinguishImages(DistinguishImagesTask),
}

/// The metric of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The distance of predictions from labels.
    Distance,
    /// Accuracy of counts. A prediction is right if its floor or ceiling is the label.
    ///
    /// It is strictly right if the nearest integer is the label.
    Count,
    /// Accuracy of decisions. Labels are 0 or 1, a prediction is the logit of 1.
    ///
    /// The error is the distance of the probability from the label.
    Decision,
}

/// The source of a task's examples.
#[derive(Clone)]
pub(super) enum Source {
    /// Random distributions.
    Generated(Arc<dyn Sampler>),
    /// A data set.
    DataSet(Arc<dyn Picker>),
    /// A data set that has not been loaded.
    Absent,
}

/// See [`Task::Kl`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KlTask {
    /// Coordinates of a point.
    pub dim: usize,
    /// Dimensions that a dimension-equivariant model is trained across; default `dim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivariant_dims: Option<IntRange>,
    /// Points of each set, drawn independently for each set.
    pub set_size: IntRange,
    /// The axes in which models see the sets.
    #[serde(default)]
    pub axes: Axes,
    /// The columns appended to the coordinates of a point. Dimension-equivariant models ignore them.
    #[serde(default, skip_serializing_if = "Append::is_empty")]
    pub append: Append,
    /// The label of an example.
    #[serde(default = "on_sample")]
    pub label: Label,
    /// The prior of the mixtures.
    #[serde(default)]
    pub mixture: MixtureLaw,
}

/// See [`Task::Mi`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MiTask {
    /// Coordinates of a point.
    pub dim: usize,
    /// Dimensions that a dimension-equivariant model is trained across; default `dim`.
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
    /// Range of dimensions. Models of one dimension use the largest.
    pub dims: IntRange,
    /// Points of each set, log-uniform.
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
    /// Dimensions that a dimension-equivariant model is trained across; default `dim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equivariant_dims: Option<IntRange>,
    /// Points of each set, drawn independently for each set.
    pub set_size: IntRange,
    /// The prior of the mixtures.
    #[serde(default)]
    pub mixture: MixtureLaw,
}

fn on_sample() -> Label {
    Label::Sample
}

/// Largest set of an experiment.
const MAX_SET_SIZE: usize = 1 << 20;
/// Largest width of a row.
const MAX_WIDTH: usize = 1 << 16;

impl Task {
    /// The error in the task's table with its position, if there is an error.
    ///
    /// Serde loses positions in tables that are tagged by `kind`, so the fields are parsed again without the tag.
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

    /// Width of the rows of each set.
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

    /// Height, width and channels, if elements are images.
    ///
    /// An element is a row of pixels from 0 to 1, channels of a pixel side by side.
    pub fn image_shape(&self) -> Option<[usize; 3]> {
        match self {
            Task::Count(t) => Some(t.image_shape()),
            Task::DistinguishImages(t) => Some(t.image_shape()),
            _ => None,
        }
    }

    /// Dimension of the points of the first set.
    pub fn dim(&self) -> usize {
        self.widths()[0]
    }

    /// The dimension that determines sizes of presets: the points' own, or 8 for data sets.
    pub(super) fn preset_dim(&self) -> usize {
        if self.equivariant_dims().is_some() { self.dim() } else { 8 }
    }

    /// Dimensions that dimension-equivariant models are trained across. None for data sets, whose coordinates differ.
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

    /// Dimensions of held-out examples for dimension-equivariant models.
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

    /// The coordinates of a model's inputs.
    pub fn coordinates(&self, model: &ModelConfig) -> Coordinates {
        match self {
            Task::Kl(t) if model.dimension_equivariant => Coordinates::new(t.axes),
            Task::Kl(t) => Coordinates { axes: t.axes, append: t.append },
            Task::BroadKl(_) => Coordinates::new(Axes::Canonical),
            _ => Coordinates::RAW,
        }
    }

    /// The scaling of rows.
    pub fn scale(&self) -> Scale {
        match self {
            Task::AlignWords(t) => t.scale,
            Task::AlignCaptions(t) => t.scale,
            _ => Scale::None,
        }
    }

    /// The metric of predictions.
    pub fn metric(&self) -> Metric {
        match self {
            Task::Kl(_) | Task::Mi(_) | Task::BroadKl(_) => Metric::Distance,
            Task::Count(_) => Metric::Count,
            Task::Distinguish(_) | Task::AlignWords(_) | Task::AlignCaptions(_) | Task::DistinguishImages(_) => {
                Metric::Decision
            }
        }
    }

    /// Whether two tasks have the same test examples.
    ///
    /// The tasks may differ in scaling, in whitened or canonical axes, in appended columns and in the size of images.
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

    /// The source of examples. Data sets are loaded from the data folder, if it is given.
    pub(super) fn source(&self, data: Option<&DataFolder>) -> Result<Source> {
        let generated: Arc<dyn Sampler> = match (self, data) {
            (Task::Kl(t), _) => Arc::new(Divergence { mixture: t.mixture.clone(), label: t.label }),
            (Task::Mi(t), _) => Arc::new(Dependence { rho: t.rho }),
            (Task::BroadKl(t), _) => Arc::new(BroadPairs { max_divergence: t.max_divergence }),
            (Task::Distinguish(t), _) => Arc::new(SameMixture { mixture: t.mixture.clone() }),
            (_, None) => return Ok(Source::Absent),
            (Task::AlignWords(t), Some(data)) => return Ok(Source::DataSet(t.load(data)?)),
            (Task::AlignCaptions(t), Some(data)) => return Ok(Source::DataSet(t.load(data)?)),
            (Task::Count(t), Some(data)) => return Ok(Source::DataSet(t.load(data)?)),
            (Task::DistinguishImages(t), Some(data)) => return Ok(Source::DataSet(t.load(data)?)),
        };
        Ok(Source::Generated(generated))
    }

    /// The source of a phase's examples, if it differs from the task's.
    pub(super) fn phase_source(&self, phase: &Phase) -> Option<Source> {
        let sampler: Arc<dyn Sampler> = match self {
            Task::Kl(t) => {
                Arc::new(Divergence { mixture: phase.mixture.as_ref()?.apply_to(&t.mixture), label: t.label })
            }
            Task::Mi(_) => Arc::new(Dependence { rho: phase.rho? }),
            _ => return None,
        };
        Some(Source::Generated(sampler))
    }

    pub(super) fn check(&self) -> Result<()> {
        if let Task::Count(t) = self {
            // Checks the side before the width, which is its square.
            t.check()?;
        }
        let dims =
            self.equivariant_dims().map_or(vec![], |d| vec![("equivariant-dims", d.min), ("equivariant-dims", d.max)]);
        let widths = self.widths().into_iter().map(|w| (if dims.is_empty() { "width" } else { "dim" }, w));
        for (key, n) in widths.chain(dims.clone()) {
            if n == 0 || n > MAX_WIDTH {
                let key = if matches!(self, Task::BroadKl(_)) { "dims" } else { key };
                return Err(bad(format!("task.{key}"), format!("is {n}, must be between 1 and {MAX_WIDTH}")));
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
                    && (points == 0 || points > MAX_SET_SIZE)
                {
                    return Err(bad(
                        "task.label.true.points",
                        format!("is {points}, must be between 1 and {MAX_SET_SIZE}"),
                    ));
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

/// Checks a prior of mixtures under the key `at`.
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

/// Checks a range of correlations.
pub(super) fn check_rho(key: &str, [a, b]: [f64; 2]) -> Result<()> {
    if !(a > -1.0 && a <= b && b < 1.0) {
        return Err(bad(key, format!("is [{a}, {b}], must be an ordered range inside (-1, 1)")));
    }
    Ok(())
}

/// Checks a range of set sizes.
pub(super) fn check_size(key: &str, size: IntRange) -> Result<()> {
    if size.min == 0 || size.max > MAX_SET_SIZE {
        let reason = format!("is [{}, {}], must be between 1 and {MAX_SET_SIZE}", size.min, size.max);
        return Err(bad(key, reason));
    }
    Ok(())
}
