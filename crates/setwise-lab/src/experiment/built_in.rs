//! Built-in experiments, and experiments in files.

use std::path::Path;

use super::Experiment;
use crate::{Error, Result};

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),*]
    };
}

/// Names and texts of the built-in experiments.
const BUILT_IN: &[(&str, &str)] = built_in![
    "paper/kl-d2",
    "paper/kl-d4",
    "paper/kl-d8",
    "paper/kl-d16",
    "paper/mi-d2",
    "paper/mi-d10",
    "paper/mi-d20",
    "paper/counting-mnist",
    "paper/counting-omniglot",
    "paper/align-words",
    "paper/align-captions",
    "paper/distinguish-synthetic",
    "paper/distinguish-images",
    "ours/kl-d2",
    "ours/kl-d4",
    "ours/kl-d8",
    "ours/kl-d16",
    "ours/kl-elements-d2",
    "ours/kl-elements-d4",
    "ours/kl-elements-d8",
    "ours/kl-elements-d16",
    "ours/kl-mixture-features-d2",
    "ours/kl-mixture-features-d4",
    "ours/kl-mixture-features-d8",
    "ours/kl-mixture-features-d16",
    "ours/mi-d2",
    "ours/mi-d10",
    "ours/mi-d20",
    "ours/counting-mnist",
    "ours/counting-omniglot",
    "ours/align-words",
    "ours/align-captions",
    "ours/distinguish-synthetic",
    "ours/distinguish-images",
    "quick/kl-d2",
    "estimator/kl",
];

/// Names of the built-in experiments.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|b| b.0)
}

/// Reads the experiment in a file, or the built-in experiment of this name. Files take precedence.
pub fn find(name: &str) -> Result<Experiment> {
    let path = Path::new(name);
    let text = match BUILT_IN.iter().find(|b| b.0 == name) {
        Some((_, text)) if !path.is_file() => (*text).to_owned(),
        Some(_) => read(path)?,
        None if path.is_file() => read(path)?,
        None => {
            let known = built_in_names().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownExperiment { name: name.to_owned(), known });
        }
    };
    Experiment::parse(&text).map_err(|e| Error::ExperimentText(format!("{name}: {e}")))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData => {
            Error::ExperimentText(format!("{}: is not text; an experiment is TOML", path.display()))
        }
        _ => Error::io(path)(e),
    })
}

#[cfg(test)]
mod tests {
    use setwise::models::OutputKind;

    use super::*;

    #[test]
    fn every_built_in_experiment_is_valid_with_every_preset() {
        for name in built_in_names() {
            for preset in setwise::models::PRESETS {
                let mut experiment = find(name).unwrap();
                experiment.set_preset(preset.name);
                let valid = experiment.clone().validate().map(drop);
                if preset.name.ends_with("-equi") && experiment.task.equivariant_dims().is_none() {
                    let error = valid.unwrap_err().to_string();
                    assert!(error.contains("model.preset") && error.contains("coordinates alike"), "{error}");
                } else if preset.name == "pine" && experiment.training.loss.output() == OutputKind::Equivariant {
                    let error = valid.unwrap_err().to_string();
                    assert!(error.contains("output") && error.contains("answers per example"), "{error}");
                } else {
                    valid.unwrap_or_else(|e| panic!("{name} with {}: {e}", preset.name));
                }
                assert_eq!(Experiment::parse(&experiment.to_toml()).unwrap(), experiment, "{name} reads back");
            }
        }
    }

    #[test]
    fn errors_name_the_key_and_the_allowed_values() {
        let text = |change: &str| {
            let base = "[task]\nkind = 'kl'\ndim = 2\nset-size = [100, 150]\n";
            match Experiment::parse(&format!("{base}{change}")).and_then(|e| e.validate().map(drop)) {
                Ok(()) => panic!("{change} was accepted"),
                Err(e) => e.to_string(),
            }
        };
        for (change, parts) in [
            ("[training]\nstepz = 5\n", ["stepz", "warmup-steps"]),
            ("[training]\nsteps = 0\n", ["training.steps", "between 1"]),
            ("[training]\nlearning-rate = -1.0\n", ["training.learning-rate", "above 0"]),
            ("[training]\nloss = 'l3'\n", ["l3", "huber"]),
            (
                "[training.schedule.cosine]\nfinal-fraction = 2.0\n",
                ["training.schedule.cosine.final-fraction", "between 0 and 1"],
            ),
            ("[training.loss.huber]\ndelta = -1.0\n", ["training.loss.huber.delta", "above 0 and finite"]),
            ("[training.loss.quantiles]\nlevels = [0.9, 0.1]\nscale = 1.0\n", ["quantiles.levels", "rising"]),
            ("[training.loss.quantiles]\nlevels = [0.1]\nscale = 0.0\n", ["quantiles.scale", "above 0"]),
            ("[training]\nschedule = 'cosine'\n", ["schedule = 'cosine'", "{ cosine = { final-fraction = 0.01 } }"]),
            (
                "[training]\nbatch-size = 65536\n[[curriculum]]\nsteps = 1\nset-size = 1000000\n",
                ["training.batch-size", "memory"],
            ),
            ("[training.optimizer.muon]\nlearning-rate = 0.0\n", ["training.optimizer.muon.learning-rate", "above 0"]),
            (
                "[model]\npreset = 'pine'\n[training.optimizer.muon]\nlearning-rate = 0.01\n",
                ["training.optimizer.muon", "none"],
            ),
            ("[[curriculum]]\nsteps = 1\nset-size = 0\n", ["curriculum.set-size", "between 1"]),
            ("[[curriculum]]\nsteps = 1\n", ["curriculum", "set-size, rho or mixture"]),
            ("[[curriculum]]\nsteps = 1\nrho = [0.5, 1.0]\n", ["curriculum.rho", "inside (-1, 1)"]),
            ("[[curriculum]]\nsteps = 1\nrho = [0.0, 0.9]\n", ["curriculum.rho", "kind mi"]),
            ("[run]\nlog-every = 0\n", ["run.log-every", "between 1"]),
            (
                "[pretraining]\nsteps = 1\nbatch-size = 0\nlearning-rate = 1.0\n",
                ["pretraining.batch-size", "between 1"],
            ),
            ("[[curriculum]]\nsteps = 1\nmixture = { spread = 0.0 }\n", ["curriculum.mixture.spread", "above 0"]),
            ("[combiner]\nexamples = 10\n", ["combiner", "broad-kl"]),
            ("[combiner]\nexamples = 0\n", ["combiner.examples", "between 1"]),
            ("whitten = true\n", ["whitten", "set-size"]),
            ("axes = 'turned'\n", ["turned", "canonical"]),
            ("append = ['own']\n", ["own", "mixture-log-densities"]),
            ("axes = 'raw'\nappend = ['raw']\n", ["task.append", "raw axes"]),
            ("axes = 'raw'\nappend = ['mixture-log-densities']\n", ["task.append", "raw axes"]),
            ("[task.mixture]\nlkj = 'wrong'\n", ["wrong", "paper"]),
            ("[task.mixture]\ncomponents = [5, 2]\n", ["[5, 2]", "empty"]),
            ("[task.mixture]\nconcentration = -2.0\n", ["task.mixture.concentration", "above 0"]),
            ("[task.mixture]\nconcentration = 'x'\n", ["line 6", "concentration = 'x'"]),
            ("[model]\npreset = 'mst'\n", ["mst", "multi-set-rn"]),
            ("[model]\nlatnt = 5\n", ["latnt", "latent"]),
            ("[model]\nheads = 5\n", ["heads", "latent"]),
            ("[model]\nsets = 3\ninput-widths = [2, 2, 2]\n", ["model.sets", "2 sets"]),
        ] {
            let error = text(change);
            assert!(parts.iter().all(|p| error.contains(p)), "{change}: {error}");
        }
        for (kind, line, reason) in [
            ("kl", "dim = -2", "non-negative integer"),
            ("kl", "dim = '2'", "invalid type: string"),
            ("mi", "set-size = [30, 20]", "the range [30, 20] is empty"),
            ("broad-kl", "dims = 1.5", "an integer or a range"),
            ("distinguish", "dimm = 2", "unknown field `dimm`"),
            ("align-words", "width = true", "invalid type: boolean"),
            ("align-captions", "widths = [1]", "length 1"),
            ("count", "data = 'minst'", "minst"),
            ("distinguish-images", "data = 'mnist'", "expected a sequence"),
        ] {
            let error = Experiment::parse(&format!("[task]\n{line}\nkind = '{kind}'\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("\n2 | {line}\n")) && error.contains(reason), "{kind}: {error}");
        }
        let error = find("paper/kl-d3").unwrap_err().to_string();
        assert!(error.contains("paper/kl-d3") && error.contains("quick/kl-d2"), "{error}");
    }
}
