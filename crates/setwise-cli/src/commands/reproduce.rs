//! `setwise reproduce TABLE`

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use setwise::estimate::Pretrained;
use setwise::files::atomic::write_atomically;
use setwise_lab::reproduce::{Reproduction, dependence, divergence, estimator, lower_bounds, power, scaling, scores};

use super::{DataArgs, DeviceArgs, log, make_folder, print_line};
use crate::failure::Failure;

/// Arguments of `reproduce`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    table: Table,
}

/// Held-out families of distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Families {
    Smooth,
    Structured,
    Development,
}

impl Families {
    /// The families, with the dimensions and sizes that are measured by default.
    fn defaults(self) -> (estimator::Families, &'static [usize], &'static [usize]) {
        match self {
            Families::Smooth => (estimator::Families::Smooth, &[1, 2, 3, 5, 8, 12, 16], &[50, 100, 200, 500, 1000]),
            Families::Structured => (estimator::Families::Structured, &[1, 2, 3, 4, 8], &[200, 1000, 5000, 20_000]),
            Families::Development => (estimator::Families::Development, &[1, 2, 3, 4, 8], &[200, 1000, 5000, 20_000]),
        }
    }
}

/// Pairs of distributions for two-sample tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Settings {
    Published,
    Classical,
    Development,
    Null,
    Random,
}

impl Settings {
    fn group(self) -> power::Settings {
        match self {
            Settings::Published => power::Settings::Published,
            Settings::Classical => power::Settings::Classical,
            Settings::Development => power::Settings::Development,
            Settings::Null => power::Settings::Null,
            Settings::Random => power::Settings::Random,
        }
    }
}

/// Two-sample tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tests {
    Adaptive,
    Energy,
    Mmd,
}

impl Tests {
    fn method(self) -> power::Method {
        match self {
            Tests::Adaptive => power::Method::Adaptive,
            Tests::Energy => power::Method::Energy,
            Tests::Mmd => power::Method::Mmd,
        }
    }
}

#[derive(Subcommand)]
enum Table {
    /// Table 1: errors of KL divergence estimates.
    Kl {
        /// Models (rows of the table), separated by commas [default: all].
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Dimensions (columns of the table), separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
        dims: Vec<usize>,
        /// Fresh examples per cell.
        #[arg(long, default_value_t = 10_000)]
        examples: usize,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Lower bounds of the errors in Table 1, from the posterior under the mixture prior.
    LowerBounds {
        /// Dimensions (columns of the table), separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
        dims: Vec<usize>,
        /// Fresh examples per cell: the first ones of `kl` with the same seed.
        #[arg(long, default_value_t = 256)]
        examples: usize,
        /// Steps of the Markov chains per example.
        #[arg(long, default_value_t = 1000)]
        steps: usize,
        /// Points per set [default: 100 to 150, as in the paper].
        #[arg(long, value_name = "N")]
        size: Option<usize>,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Figure: errors of mutual information estimates.
    Mi {
        /// Models (lines of the figure), separated by commas [default: all].
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Dimensions (panels of the figure), separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "2,10,20")]
        dims: Vec<usize>,
        /// Fresh examples per point of the figure.
        #[arg(long, default_value_t = 500)]
        examples: usize,
        /// Fresh examples per point for MINE, which trains a network on each.
        #[arg(long, default_value_t = 4)]
        mine_examples: usize,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Table 2: accuracies and errors of counting common characters.
    Counting(ScoreArgs),
    /// Table 3: accuracies of detecting aligned sets.
    Alignment(ScoreArgs),
    /// Table 4: accuracies of detecting sets of the same distribution.
    Distinguish(ScoreArgs),
    /// Errors of the pretrained and the classical KL estimators on held-out distribution families.
    Estimator {
        /// Families outside of the training data: smooth differences; fine structure, tails and supports; or those
        /// that are looked at during development.
        #[arg(long, value_enum, default_value_t = Families::Smooth)]
        families: Families,
        /// Columns of the samples, separated by commas [default: 1,2,3,5,8,12,16; structured 1,2,3,4,8].
        #[arg(long, value_delimiter = ',')]
        dims: Vec<usize>,
        /// Rows per sample, separated by commas [default: 50,100,200,500,1000; structured 200,1000,5000,20000].
        #[arg(long, value_delimiter = ',')]
        sizes: Vec<usize>,
        /// Pairs of samples per cell.
        #[arg(long, default_value_t = 50)]
        examples: usize,
        /// Pairs from the training distribution, for the coverage of intervals.
        #[arg(long, default_value_t = 2000)]
        in_family: usize,
        /// Folder of the run that trained the estimator [default: the built-in one].
        #[arg(long, value_name = "DIR")]
        estimator: Option<PathBuf>,
        #[command(flatten)]
        device: DeviceArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Power and level of two-sample tests: how often each rejects at level 5 %.
    TwoSample {
        /// Pairs of distributions: those of published comparisons, classical differences, those the test was made
        /// with, equal ones, or random changes.
        #[arg(long, value_enum, default_value_t = Settings::Classical)]
        settings: Settings,
        /// Part of the names of the settings that are measured.
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        /// Tests, separated by commas.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "adaptive,energy,mmd")]
        methods: Vec<Tests>,
        /// Rows of settings with several sizes, separated by commas [default: all].
        #[arg(long, value_delimiter = ',')]
        sizes: Vec<usize>,
        /// Repetitions of each setting.
        #[arg(long, default_value_t = 200)]
        repetitions: usize,
        /// Permutations of each test.
        #[arg(long, default_value_t = 999)]
        permutations: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Table 5: scaling of time with set size and latent width.
    Scaling {
        /// Architectures, separated by commas [default: all].
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
    /// Models (rows of the table), separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    models: Vec<String>,
    /// Fresh examples per cell.
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
        check_count("--examples", self.examples)?;
        let options = scores::Options {
            models: self.models,
            examples: self.examples,
            seed: self.common.seed,
            runs: self.common.runs()?,
            data: self.data.find()?,
            device: self.device.open()?,
        };
        Ok((scores::reproduce(which, &options, progress)?, self.common))
    }
}

/// Arguments of all tables.
#[derive(clap::Args)]
struct Common {
    /// Seed of the fresh examples.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder of the runs [default: runs].
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// Folder for the table (Markdown, CSV, JSON) and its figures (SVG, PNG).
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Markdown)]
    format: Format,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Common {
    /// The folder of runs. A given folder must exist, or a typo would look like models without a run.
    fn runs(&self) -> Result<PathBuf, Failure> {
        match &self.runs {
            Some(folder) if !folder.is_dir() => {
                Err(Failure::usage(format!("--runs {}: folder does not exist", folder.display())))
            }
            Some(folder) => Ok(folder.clone()),
            None => Ok(PathBuf::from("runs")),
        }
    }

    /// Creates the output folder, before hours of measurements.
    fn create_folder(&self) -> Result<(), Failure> {
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
    let progress = &mut |cell: &str| log(format!("measuring {cell}"));
    match &args.table {
        Table::Kl { common, .. }
        | Table::LowerBounds { common, .. }
        | Table::Mi { common, .. }
        | Table::Estimator { common, .. }
        | Table::TwoSample { common, .. }
        | Table::Scaling { common, .. } => common.create_folder()?,
        Table::Counting(args) | Table::Alignment(args) | Table::Distinguish(args) => args.common.create_folder()?,
    }
    let (result, common) = match args.table {
        Table::Kl { models, dims, examples, device, common } => {
            check_count("--examples", examples)?;
            let (seed, runs, device) = (common.seed, common.runs()?, device.open()?);
            let options = divergence::Options { models, dims, examples, seed, runs, device };
            (divergence::reproduce(&options, progress)?, common)
        }
        Table::LowerBounds { dims, examples, steps, size, device, common } => {
            check_count("--examples", examples)?;
            let (seed, runs, device) = (common.seed, common.runs()?, device.open()?);
            let options = lower_bounds::Options { dims, examples, steps, size, seed, runs, device };
            (lower_bounds::reproduce(&options, progress)?, common)
        }
        Table::Mi { models, dims, examples, mine_examples, device, common } => {
            check_count("--examples", examples)?;
            check_count("--mine-examples", mine_examples)?;
            let (seed, runs, device) = (common.seed, common.runs()?, device.open()?);
            let options = dependence::Options { models, dims, examples, mine_examples, seed, runs, device };
            (dependence::reproduce(&options, progress)?, common)
        }
        Table::Counting(args) => args.measure(scores::Which::Counting, progress)?,
        Table::Alignment(args) => args.measure(scores::Which::Alignment, progress)?,
        Table::Distinguish(args) => args.measure(scores::Which::Distinguish, progress)?,
        Table::Estimator { families, dims, sizes, examples, in_family, estimator: folder, device, common } => {
            let (families, all_dims, all_sizes) = families.defaults();
            let dims = if dims.is_empty() { all_dims.to_vec() } else { dims };
            let sizes = if sizes.is_empty() { all_sizes.to_vec() } else { sizes };
            check_count("--examples", examples)?;
            check_count("--in-family", in_family)?;
            if let Some(n) = dims.iter().chain(&sizes).find(|n| **n == 0 || **n > 100_000) {
                return Err(Failure::usage(format!("--dims and --sizes: {n} is not between 1 and 100000")));
            }
            let estimator = folder.map_or_else(Pretrained::built_in, |f| Pretrained::load(&f))?;
            let estimator = estimator.on_device(&device.open()?)?;
            let options = estimator::Options { families, dims, sizes, examples, in_family, seed: common.seed };
            (estimator::reproduce(&estimator, &options, progress)?, common)
        }
        Table::TwoSample { settings, name, methods, sizes, repetitions, permutations, common } => {
            check_count("--repetitions", repetitions)?;
            let methods = methods.into_iter().map(Tests::method).collect();
            let (settings, seed) = (settings.group(), common.seed);
            let options = power::Options { settings, name, methods, repetitions, permutations, sizes, seed };
            (power::reproduce(&options, progress)?, common)
        }
        Table::Scaling { models, sizes, widths, batch, common } => {
            let min_time = Duration::from_millis(100);
            (scaling::reproduce(&scaling::Options { models, sizes, widths, batch, min_time }, progress)?, common)
        }
    };
    if let Some(folder) = &common.out {
        write_files(&result, folder)?;
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

fn check_count(option: &str, count: usize) -> Result<(), Failure> {
    if count == 0 {
        return Err(Failure::usage(format!("{option} 0: must be at least 1")));
    }
    Ok(())
}

/// Writes the table as Markdown, CSV and JSON, and the figures as SVG and PNG.
fn write_files(result: &Reproduction, folder: &Path) -> Result<(), Failure> {
    let files = [("md", markdown(result)), ("csv", result.table.to_csv()), ("json", format!("{:#}\n", result.json))];
    for (extension, text) in files {
        let path = folder.join(format!("{}.{extension}", result.name));
        write_atomically(&path, text.as_bytes()).map_err(setwise::Error::io(&path))?;
    }
    for (name, figure) in &result.figures {
        for extension in ["svg", "png"] {
            figure.save(folder.join(format!("{name}.{extension}")))?;
        }
    }
    Ok(())
}
