//! `setwise kl P Q`

use std::path::PathBuf;

use clap::ValueEnum;
use setwise::estimate::{Estimator, GaussianKl, Knn, Logistic, Points, Pretrained};

use super::{answer, read_samples};
use crate::failure::Failure;

/// Arguments of `kl`.
#[derive(clap::Args)]
#[command(after_help = "\
The pretrained estimator answers with calibrated quantiles: nine of ten divergences like those it was trained for lie in its interval. \
It was trained for 1 to 16 columns and 30 rows or more (`setwise models` tells); where samples are outside of that, it says so and gives \
another estimate beside its own.\n\n\
Intervals of the other methods are nominal 90 % from repeated disjoint subsamples: the rows are split at random into groups, and the spread of the groups' \
estimates, scaled to all rows, is that of the estimate. They do not cover an estimator's bias. (Drawing rows with replacement would make \
duplicates, which neighbour estimators cannot take.)\n\n\
Points that coincide: a neighbour at distance zero is replaced by the nearest one at a positive distance, with its own number.")]
pub struct Args {
    /// Sample of P: CSV, TSV or NPY, rows are elements and columns dimensions. `-` is standard input.
    p: PathBuf,
    /// Sample of Q, with as many columns.
    q: PathBuf,
    /// How to estimate; pretrained if not given, or knn where --k is.
    #[arg(long, value_enum)]
    method: Option<Method>,
    /// Which neighbour `knn` measures the distance to; 3 if not given. A larger k has less noise and more bias; 3 did well in
    /// trials with 1 to 8 columns.
    #[arg(long)]
    k: Option<usize>,
    /// Seed of the interval.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// The trained estimator that is built in.
    Pretrained,
    /// Nearest neighbours (Wang, Kulkarni, Verdú).
    Knn,
    /// Closed form for two Gaussians with the samples' moments.
    Gaussian,
    /// Logistic regression of P against Q on columns, squares and products.
    Logistic,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let [p, q] = read_samples([&args.p, &args.q])?;
    let (p, q) = (Points::of(&p)?, Points::of(&q)?);
    let usual = if args.k.is_some() { Method::Knn } else { Method::Pretrained };
    let estimate = match args.method.unwrap_or(usual) {
        Method::Pretrained => Pretrained::built_in()?.estimate(p, q, args.seed),
        Method::Knn => Knn::new(args.k.unwrap_or(3)).estimate(p, q, args.seed),
        Method::Gaussian => GaussianKl.estimate(p, q, args.seed),
        Method::Logistic => Logistic.estimate(p, q, args.seed),
    }?;
    answer("KL(P‖Q)", &estimate, args.json)
}
