//! `setwise mi X Y` and `setwise mi FILE DIM_X DIM_Y`

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use setwise::estimate::{Estimate, MiMethod, MiOptions, Points, Variant, index_column_warning};
use setwise::files::Sample;
use setwise::permutation_test::{PermutationTest, TestResult};

use super::test::print;
use super::{print_estimate, print_json, print_line, read_samples, with_progress};
use crate::failure::Failure;

/// Arguments of `mi`.
#[derive(clap::Args)]
#[command(override_usage = "setwise mi [OPTIONS] <X> <Y>\n       setwise mi [OPTIONS] <FILE> <DIM_X> <DIM_Y>")]
pub struct Args {
    /// Two files with paired rows, or one file and the columns of X and Y; `-` is standard input.
    #[arg(required = true, num_args = 2..=3, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// Estimator.
    #[arg(long, value_enum, default_value_t = Method::Ksg)]
    method: Method,
    /// Kraskov's first (squares) or second (rectangles) estimator, for ksg [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2))]
    variant: Option<u8>,
    /// Rank of the neighbour that ksg measures the distance to [default: 3].
    #[arg(long)]
    k: Option<usize>,
    /// Seed of the interval, of permutations, and of the networks of mine.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Test whether X and Y are independent, by permuting the rows of Y.
    #[arg(long, conflicts_with = "plain")]
    test: bool,
    /// Number of permutations of --test [default: 999].
    #[arg(long, value_name = "N", requires = "test")]
    permutations: Option<usize>,
    /// Level of significance of --test [default: 0.05].
    #[arg(long, value_name = "ALPHA", requires = "test", hide_short_help = true)]
    alpha: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the estimate alone, without an interval.
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// Nearest neighbours (Kraskov, Stögbauer, Grassberger).
    Ksg,
    /// Closed form for a Gaussian with the pairs' moments.
    Gaussian,
    /// The same for normal scores: outliers and units of columns hardly matter.
    Copula,
    /// A lower bound from trained networks (Belghazi et al.).
    Mine,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    for (option, given) in [("--k", args.k.is_some()), ("--variant", args.variant.is_some())] {
        if given && !matches!(args.method, Method::Ksg) {
            return Err(Failure::usage(format!("{option} is for --method ksg")));
        }
    }
    let [of_x, of_y] = match &args.inputs[..] {
        [file, dim_x, dim_y] => split(file, dim_x, dim_y)?,
        [x, y] => read_samples([x, y])?,
        _ => return Err(Failure::usage("give two files, or one file with DIM_X and DIM_Y")),
    };
    let (x, y) = (Points::of(&of_x)?, Points::of(&of_y)?);
    let method = match args.method {
        Method::Ksg => MiMethod::Ksg,
        Method::Gaussian => MiMethod::Gaussian,
        Method::Copula => MiMethod::Copula,
        Method::Mine => MiMethod::Mine,
    };
    let variant = if args.variant == Some(2) { Variant::Two } else { Variant::One };
    let defaults = MiOptions::default();
    let options = MiOptions { method, variant, k: args.k.unwrap_or(defaults.k), seed: args.seed };
    if args.plain {
        return print_line(with_progress("estimating I(X; Y)", |_| options.estimator().value(x, y))?);
    }
    let work = |progress: &_| options.estimator().estimate_observed(x, y, args.seed, progress);
    let mut estimate = with_progress("estimating I(X; Y)", work)?;
    estimate.warnings.extend([&of_x, &of_y].into_iter().filter_map(index_column_warning));
    let Some(test) = args.permutation_test() else { return print_estimate("I(X; Y)", &estimate, args.json) };
    let result = with_progress("permuting the rows of Y", |progress| test.independence(x, y, progress))?;
    if args.json {
        return print_json(&WithTest { estimate: &estimate, test: &result });
    }
    print_estimate("I(X; Y)", &estimate, false)?;
    let conclusion = match result.significant {
        true => "X and Y depend on each other",
        false => "no evidence that X and Y depend on each other",
    };
    print::verdict(&result, conclusion, test.permutations)?;
    print::statistic(&result)?;
    result.warnings.iter().try_for_each(|w| print_line(format!("warning: {w}")))
}

/// The JSON of an estimate with a test.
#[derive(Serialize)]
struct WithTest<'a> {
    #[serde(flatten)]
    estimate: &'a Estimate,
    test: &'a TestResult,
}

impl Args {
    fn permutation_test(&self) -> Option<PermutationTest> {
        let defaults = PermutationTest::default();
        let permutations = self.permutations.unwrap_or(defaults.permutations);
        let alpha = self.alpha.unwrap_or(defaults.alpha);
        self.test.then_some(PermutationTest { permutations, alpha, seed: self.seed, ..defaults })
    }
}

/// X and Y from the columns of one file.
fn split(file: &Path, dim_x: &Path, dim_y: &Path) -> Result<[Sample; 2], Failure> {
    let number = |text: &Path| match text.to_str().and_then(|t| t.parse::<usize>().ok()) {
        Some(n) if n > 0 => Ok(n),
        _ => Err(Failure::usage(format!(
            "{:?}: is not a number of columns; give two files, or one file with DIM_X and DIM_Y",
            text.display()
        ))),
    };
    let (dim_x, dim_y) = (number(dim_x)?, number(dim_y)?);
    let both = Sample::read(file)?;
    if dim_x.checked_add(dim_y) != Some(both.width) {
        return Err(Failure::usage(format!(
            "{}: has {} columns, DIM_X and DIM_Y are {dim_x} and {dim_y}; their sum must be {1}",
            file.display(),
            both.width
        )));
    }
    Ok([both.columns(0..dim_x), both.columns(dim_x..both.width)])
}
