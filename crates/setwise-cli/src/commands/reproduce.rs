//! `setwise reproduce TABLE`

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use setwise::estimate::Pretrained;
use setwise_lab::reproduce::{Reproduction, dependence, divergence, estimator, lower_bounds, scaling, scores};

use super::{DataArgs, DeviceArgs, log, make_folder, print_line};
use crate::failure::Failure;

/// Arguments of `reproduce`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    table: Which,
}

#[derive(Subcommand)]
enum Which {
    /// Table 1: errors of estimates of KL divergence.
    Kl {
        /// Rows, separated by commas [default: all].
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Columns, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
        dims: Vec<usize>,
        /// Fresh examples for each number.
        #[arg(long, default_value_t = 10_000)]
        examples: usize,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Bounds of the smallest possible error in Table 1, by the posterior under the prior of mixtures.
    LowerBounds {
        /// Columns, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
        dims: Vec<usize>,
        /// Fresh examples for each number; the first of those of `kl` with the same seed.
        #[arg(long, default_value_t = 256)]
        examples: usize,
        /// Steps of the Markov chains on each example.
        #[arg(long, default_value_t = 1000)]
        steps: usize,
        /// Points of both sets, instead of the paper's 100 to 150.
        #[arg(long, value_name = "N")]
        size: Option<usize>,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// The figure of errors of estimates of mutual information.
    Mi {
        /// Lines, separated by commas; all if not given.
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Panels, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "2,10,20")]
        dims: Vec<usize>,
        /// Fresh examples for each number.
        #[arg(long, default_value_t = 500)]
        examples: usize,
        /// The same for MINE, which trains a network on each example.
        #[arg(long, default_value_t = 4)]
        mine_examples: usize,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Table 2: accuracies and errors of counting common characters.
    Counting(ScoreArgs),
    /// Table 3: accuracies of telling whether sets are aligned.
    Alignment(ScoreArgs),
    /// Table 4: accuracies of telling whether sets are of one distribution.
    Distinguish(ScoreArgs),
    /// The pretrained KL estimator on families of distributions it never saw, beside classical ones.
    Estimator {
        /// Columns of the samples, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "1,2,3,5,8,12,16")]
        dims: Vec<usize>,
        /// Rows of both samples, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "50,100,200,500,1000")]
        sizes: Vec<usize>,
        /// Pairs of samples for each cell.
        #[arg(long, default_value_t = 50)]
        examples: usize,
        /// Pairs of the trained kind for the coverage of intervals.
        #[arg(long, default_value_t = 2000)]
        in_family: usize,
        /// Folder of the run that made the estimator; the one that is built in if not given.
        #[arg(long, value_name = "DIR")]
        estimator: Option<PathBuf>,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Table 5: how time grows with set size and width.
    Scaling {
        /// Architectures, separated by commas; all if not given.
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Set sizes, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "32,64,128,256,512,1024")]
        sizes: Vec<usize>,
        /// Latent widths, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "16,32,64,128")]
        widths: Vec<usize>,
        /// Examples in a batch.
        #[arg(long, default_value_t = 2)]
        batch: usize,
        #[command(flatten)]
        common: Common,
    },
}

/// Arguments of the tables of accuracies.
#[derive(clap::Args)]
struct ScoreArgs {
    /// Rows, separated by commas; all if not given.
    #[arg(long, value_delimiter = ',')]
    models: Vec<String>,
    /// Fresh examples for each number.
    #[arg(long, default_value_t = 10_000)]
    examples: usize,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    common: Common,
}

impl ScoreArgs {
    fn measure(self, which: scores::Which, progress: &mut dyn FnMut(&str)) -> Result<(Reproduction, Common), Failure> {
        at_least_one(self.examples)?;
        let options = scores::Options {
            models: self.models,
            examples: self.examples,
            seed: self.common.seed,
            runs: self.common.runs()?,
            data: self.data.find()?,
            device: self.device.find()?,
        };
        Ok((scores::reproduce(which, &options, progress)?, self.common))
    }
}

#[derive(clap::Args)]
struct Common {
    /// Seed of the fresh examples.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder of the runs [default: runs].
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// Folder for the table (Markdown, CSV, JSON) and its figures (SVG, PNG).
    #[arg(short, long, alias = "output", value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Markdown)]
    format: Format,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Common {
    /// The folder of runs. One that was asked for must be there, or a slip would look like models nobody has trained.
    fn runs(&self) -> Result<PathBuf, Failure> {
        match &self.runs {
            Some(folder) if !folder.is_dir() => {
                Err(Failure::usage(format!("--runs {}: there is no such folder", folder.display())))
            }
            Some(folder) => Ok(folder.clone()),
            None => Ok(PathBuf::from("runs")),
        }
    }

    /// What is needed before hours of measuring.
    fn prepare(&self) -> Result<(), Failure> {
        self.out.as_deref().map_or(Ok(()), make_folder)
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Markdown,
    Csv,
    Json,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let progress = &mut |what: &str| log(format!("measuring {what}"));
    match &args.table {
        Which::Kl { common, .. }
        | Which::LowerBounds { common, .. }
        | Which::Mi { common, .. }
        | Which::Estimator { common, .. }
        | Which::Scaling { common, .. } => common.prepare()?,
        Which::Counting(args) | Which::Alignment(args) | Which::Distinguish(args) => args.common.prepare()?,
    }
    let (result, common) = match args.table {
        Which::Kl { models, dims, examples, device, common } => {
            at_least_one(examples)?;
            let (seed, runs, device) = (common.seed, common.runs()?, device.find()?);
            let options = divergence::Options { models, dims, examples, seed, runs, device };
            (divergence::reproduce(&options, progress)?, common)
        }
        Which::LowerBounds { dims, examples, steps, size, device, common } => {
            at_least_one(examples)?;
            let (seed, runs, device) = (common.seed, common.runs()?, device.find()?);
            let options = lower_bounds::Options { dims, examples, steps, size, seed, runs, device };
            (lower_bounds::reproduce(&options, progress)?, common)
        }
        Which::Mi { models, dims, examples, mine_examples, device, common } => {
            at_least_one(examples.min(mine_examples))?;
            let (seed, runs, device) = (common.seed, common.runs()?, device.find()?);
            let options = dependence::Options { models, dims, examples, mine_examples, seed, runs, device };
            (dependence::reproduce(&options, progress)?, common)
        }
        Which::Counting(args) => args.measure(scores::Which::Counting, progress)?,
        Which::Alignment(args) => args.measure(scores::Which::Alignment, progress)?,
        Which::Distinguish(args) => args.measure(scores::Which::Distinguish, progress)?,
        Which::Estimator { dims, sizes, examples, in_family, estimator: folder, device, common } => {
            at_least_one(examples.min(in_family))?;
            if let Some(n) = dims.iter().chain(&sizes).find(|n| **n == 0 || **n > 100_000) {
                return Err(Failure::usage(format!("--dims and --sizes: {n} must be between 1 and 100000")));
            }
            let estimator = folder.map_or_else(Pretrained::built_in, |f| Pretrained::load(&f))?;
            let estimator = estimator.on_device(&device.find()?)?;
            let options = estimator::Options { dims, sizes, examples, in_family, seed: common.seed };
            (estimator::reproduce(&estimator, &options, progress)?, common)
        }
        Which::Scaling { models, sizes, widths, batch, common } => {
            let min_time = Duration::from_millis(100);
            (scaling::reproduce(&scaling::Options { models, sizes, widths, batch, min_time }, progress)?, common)
        }
    };
    if let Some(folder) = &common.out {
        write(&result, folder)?;
    }
    match common.format {
        _ if common.json => print_line(&result.json),
        Format::Json => print_line(&result.json),
        Format::Csv => print_line(result.table.to_csv().trim_end()),
        Format::Markdown => print_line(markdown(&result).trim_end()),
    }
}

/// The table with its notes.
fn markdown(result: &Reproduction) -> String {
    let notes = result.notes.iter().map(|note| format!("\n{note}\n"));
    [result.table.to_markdown()].into_iter().chain(notes).collect()
}

fn at_least_one(examples: usize) -> Result<(), Failure> {
    if examples == 0 {
        return Err(Failure::usage("examples: at least 1 is needed"));
    }
    Ok(())
}

fn write(result: &Reproduction, folder: &Path) -> Result<(), Failure> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| setwise::Error::Io { path, source }
    };
    let files = [("md", markdown(result)), ("csv", result.table.to_csv()), ("json", format!("{:#}\n", result.json))];
    for (extension, text) in files {
        let path = folder.join(format!("{}.{extension}", result.name));
        std::fs::write(&path, text).map_err(io(&path))?;
    }
    for (name, figure) in &result.figures {
        for extension in ["svg", "png"] {
            figure.save(folder.join(format!("{name}.{extension}")))?;
        }
    }
    Ok(())
}
