//! Tasks of setwise's developers. `cargo xtask` lists them, `cargo xtask ci` runs what must hold before a change lands.

mod layers;
mod pages;
mod python;
mod reference;
mod shell;

use std::process::ExitCode;
use std::time::Instant;

use shell::{Outcome, cargo, run};

/// A task: its name, what it does, and how.
type Task = (&'static str, &'static str, fn() -> Outcome);

/// All tasks, in the order in which `ci` runs them.
const TASKS: &[Task] = &[
    ("fmt", "check the formatting", fmt),
    ("layers", "check that no module imports one above it", layers::check),
    ("reference", "check that the reference pages are those of the code", reference::check),
    ("lint", "clippy with the CUDA backend and without estimators; rustdoc", lint),
    ("test", "all tests of the workspace", test),
    ("checked", "some engine tests with debug assertions and overflow checks", checked),
    ("portable", "some tests without vector instructions", portable),
    ("examples", "the README's first command, a model on files, an example with a promised accuracy", examples),
    ("pages", "HTML pages in Chromium at three widths, where it is installed or can be", pages::check),
    ("package", "cargo package of every published crate, without the verifying build", package),
    ("python", "the wheel in a fresh environment, its tests, documentation and examples", python::check),
    ("site", "the documentation site in strict mode", python::site),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ci"] => TASKS.iter().try_for_each(run_task),
        ["write-reference"] => reference::write().and_then(|()| write_commands()),
        [name] => match TASKS.iter().find(|task| task.0 == name) {
            Some(task) => run_task(task),
            None => Err(format!("there is no task {name:?}; `cargo xtask` lists them")),
        },
        _ => {
            println!("cargo xtask TASK, where TASK is one of");
            TASKS.iter().for_each(|(name, about, _)| println!("  {name:9} {about}"));
            println!("  {:9} all of them, in this order", "ci");
            println!("cargo xtask write-reference writes the reference pages from the code");
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run_task((name, _, task): &Task) -> Outcome {
    let start = Instant::now();
    println!("== {name}");
    task().map_err(|reason| format!("{name}: {reason}"))?;
    println!("== {name} passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn fmt() -> Outcome {
    cargo("fmt --all --check")
}

fn lint() -> Outcome {
    // With the CUDA backend, which compiles everywhere; it runs where there is a GPU (`setwise selftest --device cuda`).
    cargo("clippy --workspace --all-targets --features cuda -- -D warnings")?;
    // Models and training alone.
    cargo("clippy --package setwise --no-default-features -- -D warnings")?;
    run(shell::command("cargo doc --workspace --no-deps --quiet").env("RUSTDOCFLAGS", "-D warnings"))
}

fn test() -> Outcome {
    cargo("test --workspace")
}

fn checked() -> Outcome {
    cargo("test --profile checked -p setwise-engine --lib")
}

fn portable() -> Outcome {
    // The same build as `test`; the variable is read when a program starts.
    run(shell::command(
        "cargo test --workspace --test fixtures --test attention --test element_labels --test invariances",
    )
    .env("SETWISE_ISA", "portable"))
}

fn examples() -> Outcome {
    let built = shell::target().join("debug");
    // `test` has built both.
    if !built.join("setwise").exists() || !built.join("examples/common_symbols").exists() {
        cargo("build --workspace --bin setwise --example common_symbols")?;
    }
    let setwise = built.join("setwise").display().to_string();
    run(&mut shell::command(&format!("{setwise} kl examples/samples/p.csv examples/samples/q.csv")))?;
    let model = "weights/common-symbols.safetensors";
    run(&mut shell::command(&format!("{setwise} predict {model} examples/sets/a.csv examples/sets/b.csv")))?;
    run(&mut shell::command(&built.join("examples/common_symbols").display().to_string()))
}

/// The page of all commands is written by a test of the command line, which knows them.
fn write_commands() -> Outcome {
    run(shell::command("cargo test --workspace --bin setwise").env("SETWISE_WRITE_REFERENCE", "1"))
}

fn package() -> Outcome {
    cargo("package --workspace --exclude setwise-python --exclude xtask --no-verify --allow-dirty --quiet")
}
