//! The Python package as a user gets it, and the documentation site.

use std::path::PathBuf;

use crate::shell::{Outcome, command, root, run, target};

/// The wheel that pip builds, in a fresh environment with nothing but NumPy and pytest beside it.
pub fn check() -> Outcome {
    let environment = Environment::create("python-environment")?;
    environment.pip("install --quiet pytest")?;
    // A user's is a release build; this one has the crates that were just tested.
    run(environment.program("pip").args([
        "install",
        "--quiet",
        "--config-settings",
        "build-args=--profile dev --features setwise-engine/f64",
        ".",
    ]))?;
    let setwise = target().join("debug/setwise");
    run(environment.program("pytest").arg("--quiet").env("SETWISE_COMMAND", setwise))?;
    // Frames, where their packages can be had; the tests are skipped without them.
    if environment.pip("install --quiet pandas polars").is_err() {
        eprintln!("pandas and polars could not be installed");
    }
    run(environment.program("pytest").args(["--quiet", "-k", "frames"]))?;
    let mut examples: Vec<PathBuf> = std::fs::read_dir(root().join("examples/python"))
        .map_err(|e| format!("examples/python: {e}"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "py"))
        .collect();
    examples.sort();
    examples.iter().try_for_each(|example| run(environment.program("python").arg(example)))
}

/// The documentation site; broken links and pages that no navigation names are errors.
pub fn site() -> Outcome {
    let environment = Environment::create("site-environment")?;
    environment.pip("install --quiet --requirement docs/requirements.txt")?;
    let site = target().join("site");
    run(environment.program("mkdocs").args(["build", "--strict", "--quiet", "--site-dir"]).arg(site))
}

/// A virtual environment.
struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Creates one, anew.
    fn create(name: &str) -> Result<Self, String> {
        let folder = target().join(name);
        run(command("python3 -m venv --clear").arg(&folder)).map_err(|e| {
            format!("no virtual environment could be made ({e}); Python 3.10 or later needs its venv module")
        })?;
        Ok(Environment { folder })
    }

    fn program(&self, name: &str) -> std::process::Command {
        let mut command = command(&self.folder.join("bin").join(name).display().to_string());
        command.current_dir(root());
        command
    }

    fn pip(&self, arguments: &str) -> Outcome {
        run(self.program("pip").args(arguments.split_whitespace()))
    }
}
