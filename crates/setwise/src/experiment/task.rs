//! Tasks: which examples are drawn and how they are labelled.

use serde::{Deserialize, Serialize};

use super::settings::bad;
use crate::Result;
use crate::data::{Broad, Dependence, Divergence, Label, MixtureLaw, Sampler, Span};
use crate::sets::Frame;

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

fn yes() -> bool {
    true
}

fn on_sample() -> Label {
    Label::Sample
}

/// Largest set and widest point an experiment may ask for.
const LARGEST: usize = 1 << 20;
const WIDEST: usize = 1 << 12;

impl Task {
    /// Coordinates of a point.
    pub fn dim(&self) -> usize {
        match self {
            Task::Kl(t) => t.dim,
            Task::Mi(t) => t.dim,
            Task::BroadKl(t) => t.dims.most,
        }
    }

    /// Dimensions that models of any dimension are trained across.
    pub fn equivariant_dims(&self) -> Span {
        let dims = match self {
            Task::Kl(t) => t.equivariant_dims,
            Task::Mi(t) => t.equivariant_dims,
            Task::BroadKl(t) => Some(t.dims),
        };
        dims.unwrap_or(Span::new(self.dim(), self.dim()))
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
        }
    }

    /// The coordinates models see the sets of an example in.
    pub fn frame(&self) -> Frame {
        match self {
            Task::Kl(t) if t.whiten => Frame::Whitened,
            Task::Kl(_) | Task::Mi(_) => Frame::Own,
            Task::BroadKl(_) => Frame::Canonical,
        }
    }

    /// What draws the examples.
    pub fn sampler(&self) -> Box<dyn Sampler> {
        match self {
            Task::Kl(t) => Box::new(Divergence { mixture: t.mixture.clone(), label: t.label }),
            Task::Mi(t) => Box::new(Dependence { rho: t.rho }),
            Task::BroadKl(t) => Box::new(Broad { largest: t.largest }),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let dims = self.equivariant_dims();
        for (key, n) in [("dim", self.dim()), ("equivariant-dims", dims.least), ("equivariant-dims", dims.most)] {
            if n == 0 || n > WIDEST {
                let key = if matches!(self, Task::BroadKl(_)) { "dims" } else { key };
                return Err(bad(format!("task.{key}"), format!("is {n}, must be between 1 and {WIDEST}")));
            }
        }
        check_size("task.set-size", self.set_size())?;
        match self {
            Task::Kl(t) => {
                let m = &t.mixture;
                if m.components.least == 0 || m.components.most > 10_000 {
                    return Err(bad("task.mixture.components", "must be between 1 and 10000"));
                }
                if !(m.concentration > 0.0 && m.concentration <= 1e6) {
                    let reason = format!("is {}, must be above 0 and at most 1e6", m.concentration);
                    return Err(bad("task.mixture.concentration", reason));
                }
                if !(0.0..=10.0).contains(&m.log_scale_sd) {
                    let reason = format!("is {}, must be between 0 and 10", m.log_scale_sd);
                    return Err(bad("task.mixture.log-scale-sd", reason));
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
            Task::Mi(t) => {
                let [a, b] = t.rho;
                if !(a > -1.0 && a <= b && b < 1.0) {
                    return Err(bad("task.rho", format!("is [{a}, {b}], must be an ordered range inside (-1, 1)")));
                }
            }
        }
        Ok(())
    }
}

/// Sets may not be empty nor larger than memory.
pub(super) fn check_size(key: &str, size: Span) -> Result<()> {
    if size.least == 0 || size.most > LARGEST {
        let reason = format!("is [{}, {}], must be between 1 and {LARGEST}", size.least, size.most);
        return Err(bad(key, reason));
    }
    Ok(())
}
