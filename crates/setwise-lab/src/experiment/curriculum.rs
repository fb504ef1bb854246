//! The curriculum: other examples for the first steps, usually easier ones.

use serde::{Deserialize, Serialize};

use setwise::distributions::{IntRange, MixtureLaw, MixtureLawOverrides};

use super::config::bad;
use super::task::{check_mixture, check_rho, check_size};
use crate::Result;

/// One phase of the curriculum. Keys that it omits are the task's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Phase {
    /// Number of steps.
    pub steps: u64,
    /// Elements of a set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_size: Option<IntRange>,
    /// Range of the correlation, for a task of kind mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rho: Option<[f64; 2]>,
    /// Changes to the prior of mixtures, for a task of kind kl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<MixtureLawOverrides>,
}

impl Phase {
    pub(super) fn check(&self) -> Result<()> {
        if let Phase { set_size: None, rho: None, mixture: None, .. } = self {
            return Err(bad("curriculum", "has a phase without set-size, rho or mixture"));
        }
        if let Some(size) = self.set_size {
            check_size("curriculum.set-size", size)?;
        }
        if let Some(rho) = self.rho {
            check_rho("curriculum.rho", rho)?;
        }
        if let Some(mixture) = &self.mixture {
            check_mixture("curriculum.mixture", &mixture.apply_to(&MixtureLaw::default()))?;
        }
        Ok(())
    }
}

/// The phase of a step, counted from zero. None after the last phase.
pub fn phase_of(curriculum: &[Phase], step: u64) -> Option<&Phase> {
    let mut end = 0;
    curriculum.iter().find(|p| {
        end = p.steps.saturating_add(end);
        step < end
    })
}
