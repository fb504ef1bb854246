//! The runs of a grid, each with its folder.

use std::path::PathBuf;

use crate::datasets::DataFolder;
use crate::experiment::{ValidExperiment, find};
use crate::run::RunPlan;
use crate::{Error, Result};

/// The parent of run folders if none is given.
const RUNS: &str = "runs";

/// Every experiment with every preset and seed.
///
/// ```
/// use setwise_lab::datasets::DataFolder;
/// use setwise_lab::grid::Grid;
///
/// let grid = Grid { experiments: vec!["paper/kl-d2".to_owned()], seeds: vec![1, 2], ..Grid::default() };
/// let plans = grid.plan(&DataFolder::find(None))?;
/// assert!(plans[1].folder.ends_with("runs/paper-kl-d2-multi-set-transformer-s2"));
/// # Ok::<(), setwise_lab::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// Names of experiments: files, or built-in experiments.
    pub experiments: Vec<String>,
    /// Presets in place of each experiment's, if any.
    pub presets: Vec<String>,
    /// Seeds in place of each experiment's, if any.
    pub seeds: Vec<u64>,
    /// Number of steps in place of each experiment's.
    pub steps: Option<u64>,
    /// The folder of the run, or of the subfolders of several runs. The default is a subfolder of `runs`.
    pub folder: Option<PathBuf>,
}

impl Grid {
    /// All runs. Recorded data is loaded once for each task.
    ///
    /// Fails if two runs have the same folder.
    pub fn plan(&self, data: &DataFolder) -> Result<Vec<RunPlan>> {
        let mut plans: Vec<RunPlan> = Vec::new();
        for name in &self.experiments {
            let base = find(name)?;
            let presets = match self.presets.is_empty() {
                true => vec![base.preset().to_owned()],
                false => self.presets.clone(),
            };
            let seeds = if self.seeds.is_empty() { vec![base.seed] } else { self.seeds.clone() };
            for (preset, seed) in presets.iter().flat_map(|p| seeds.iter().map(move |s| (p, *s))) {
                let mut experiment = base.clone();
                if !self.presets.is_empty() {
                    experiment.set_preset(preset);
                }
                experiment.training.steps = self.steps.unwrap_or(experiment.training.steps);
                experiment.seed = seed;
                let experiment = experiment.validate_named(name)?;
                let experiment = match plans.iter().find_map(|p| experiment.clone().with_data_of(&p.experiment)) {
                    Some(loaded) => loaded,
                    None => experiment.with_data(data)?,
                };
                let folder = self.folder_of(name, &experiment);
                if plans.iter().any(|p| p.folder == folder) {
                    let reason = "is the folder of two runs; give each experiment, preset and seed once".to_owned();
                    return Err(Error::Run { path: folder, reason });
                }
                plans.push(RunPlan { name: name.clone(), experiment, folder });
            }
        }
        Ok(plans)
    }

    /// The folder of a run.
    fn folder_of(&self, name: &str, experiment: &ValidExperiment) -> PathBuf {
        let several = [self.experiments.len(), self.presets.len(), self.seeds.len()].iter().any(|&n| n > 1);
        let subfolder = subfolder(name, experiment.preset(), experiment.seed);
        match &self.folder {
            Some(folder) if several => folder.join(subfolder),
            Some(folder) => folder.clone(),
            None => PathBuf::from(RUNS).join(subfolder),
        }
    }
}

/// The name of a run's folder: `EXPERIMENT-PRESET-sSEED`.
fn subfolder(name: &str, preset: &str, seed: u64) -> String {
    // A leading dot would hide the folder, a leading slash would place it elsewhere.
    let name = name.trim_end_matches(".toml").trim_start_matches(['.', '/', '\\']).trim_start_matches("experiments/");
    let name = name.replace(['/', '\\'], "-");
    format!("{name}-{preset}-s{seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(presets: &[&str], seeds: &[u64]) -> Grid {
        Grid {
            experiments: vec!["paper/kl-d2".to_owned()],
            presets: presets.iter().map(|&p| p.to_owned()).collect(),
            seeds: seeds.to_vec(),
            ..Grid::default()
        }
    }

    fn plan(grid: &Grid) -> Result<Vec<RunPlan>> {
        grid.plan(&DataFolder::find(None))
    }

    #[test]
    fn every_preset_is_planned_with_every_seed_in_a_folder_of_its_name() {
        let grid = Grid { steps: Some(7), folder: Some("out".into()), ..grid(&["pine", "cross-only"], &[1, 2]) };
        let plans = plan(&grid).unwrap();
        let folders: Vec<_> = plans.iter().map(|p| p.folder.to_str().unwrap()).collect();
        let names = ["pine-s1", "pine-s2", "cross-only-s1", "cross-only-s2"];
        assert_eq!(folders, names.map(|n| format!("out/paper-kl-d2-{n}")));
        assert!(plans.iter().all(|p| p.experiment.training.steps == 7 && p.name == "paper/kl-d2"));
        assert_eq!(plans[3].experiment.preset(), "cross-only");
        assert_eq!(plans[3].experiment.seed, 2);
    }

    #[test]
    fn a_single_run_takes_the_given_folder_as_it_is() {
        let grid = Grid { folder: Some("out".into()), ..grid(&[], &[3]) };
        assert_eq!(plan(&grid).unwrap()[0].folder, PathBuf::from("out"));
    }

    #[test]
    fn two_runs_in_one_folder_are_refused() {
        let error = plan(&grid(&[], &[1, 1])).err().expect("an error").to_string();
        assert!(
            error.ends_with("-s1: is the folder of two runs; give each experiment, preset and seed once"),
            "{error}"
        );
    }

    #[test]
    fn names_of_files_become_names_of_visible_folders_without_separators() {
        assert_eq!(subfolder("../experiments/a/b.toml", "pine", 4), "a-b-pine-s4");
        assert_eq!(subfolder("/tmp/x.toml", "pine", 0), "tmp-x-pine-s0");
    }
}
