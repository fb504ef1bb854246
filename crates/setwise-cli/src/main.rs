//! The command line of setwise: thin over the library.

mod commands;
mod failure;
#[cfg(test)]
mod reference;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    bench, compare, completions, divergence, embed, eval, import, kl, man, mi, models, predict, ratio, reproduce,
    sample, selftest, test, train,
};
use failure::Failure;

/// Two samples and a question: how far apart, how dependent, the same distribution or not?
///
/// It also trains models of functions of several sets.
#[derive(Parser)]
#[command(name = "setwise", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    /// Number of threads [default: all cores].
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

const EMBED: &str = "Run an ONNX image encoder over a folder of images";
const SELFTEST: &str = "Compare a GPU with the CPU: every architecture, forward and backward";

#[derive(Subcommand)]
enum Command {
    /// Compare two tables: what changed, how much and how sure.
    Compare(compare::Args),
    /// Estimate the KL divergence of two samples.
    Kl(kl::Args),
    /// Estimate KL, Jensen–Shannon, total variation and Hellinger of two samples.
    Divergence(divergence::Args),
    /// Estimate the mutual information of paired rows.
    Mi(mi::Args),
    /// Estimate the log density ratio of two samples at every row.
    Ratio(ratio::Args),
    /// Test whether samples come from the same distribution.
    Test(test::Args),
    /// Apply a trained model to sets in files.
    Predict(predict::Args),
    /// Train the models of experiments.
    Train(train::Args),
    /// Measure the error of a trained model on fresh examples of its task.
    Eval(eval::Args),
    /// Reproduce a table or figure of the paper.
    Reproduce(reproduce::Args),
    /// Run an ONNX image encoder over a folder of images.
    #[command(about = about_with_feature(EMBED, cfg!(feature = "onnx"), "onnx"))]
    Embed(embed::Args),
    /// Draw examples of an experiment into NPY files.
    Sample(sample::Args),
    /// List the preset architectures.
    Models(models::Args),
    /// Convert weights of the paper's PyTorch code to a model file.
    Import(import::Args),
    /// Compare a GPU with the CPU in double precision: every architecture, forward and backward.
    #[command(about = about_with_feature(SELFTEST, cfg!(feature = "cuda"), "cuda"))]
    Selftest(selftest::Args),
    /// Time forward passes and training steps.
    Bench(bench::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Write man pages.
    Man(man::Args),
}

/// The summary of a command that needs a feature. It names the feature if this build lacks it.
fn about_with_feature(about: &str, built: bool, feature: &str) -> String {
    if built { about.to_owned() } else { format!("{about} (not in this build: needs --features {feature})") }
}

fn main() -> ExitCode {
    // clap exits with 2 on bad usage and with 0 for --help and --version.
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            commands::log(format!("setwise: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let mut pool = rayon::ThreadPoolBuilder::new();
    if let Some(n) = cli.threads {
        if n == 0 || n > 1024 {
            return Err(Failure::usage(format!("--threads {n}: must be between 1 and 1024")));
        }
        pool = pool.num_threads(n);
    }
    let pool = pool.build().map_err(|e| Failure::other(format!("cannot start threads: {e}")))?;
    let done = |()| ExitCode::SUCCESS;
    pool.install(|| match cli.command {
        Command::Compare(args) => compare::run(args),
        Command::Kl(args) => kl::run(args).map(done),
        Command::Divergence(args) => divergence::run(args).map(done),
        Command::Mi(args) => mi::run(args).map(done),
        Command::Ratio(args) => ratio::run(args).map(done),
        Command::Test(args) => test::run(args).map(done),
        Command::Predict(args) => predict::run(args).map(done),
        Command::Train(args) => train::run(args),
        Command::Eval(args) => eval::run(args).map(done),
        Command::Reproduce(args) => reproduce::run(args).map(done),
        Command::Embed(args) => embed::run(args).map(done),
        Command::Sample(args) => sample::run(args).map(done),
        Command::Models(args) => models::run(args).map(done),
        Command::Import(args) => import::run(args).map(done),
        Command::Selftest(args) => selftest::run(args).map(done),
        Command::Bench(args) => bench::run(args).map(done),
        Command::Completions(args) => completions::run(&args, Cli::command()).map(done),
        Command::Man(args) => man::run(&args, Cli::command()).map(done),
    })
}
