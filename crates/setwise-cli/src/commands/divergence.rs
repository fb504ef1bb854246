//! `setwise divergence P Q`

use std::path::PathBuf;

use clap::ValueEnum;
use setwise::estimate::{Estimate, Points, Pretrained, Quantity, file_warnings};
use setwise_report::decimals;

use super::{ColumnArgs, print_json, print_line, with_progress};
use crate::failure::Failure;

/// Arguments of `divergence`.
#[derive(clap::Args)]
pub struct Args {
    /// Sample of P: CSV, TSV or NPY with a point per row; `-` is standard input.
    p: PathBuf,
    /// Sample of Q, with the same columns.
    q: PathBuf,
    /// Divergences, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    measure: Vec<Measure>,
    /// Seed of intervals of fallback estimates.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Measure {
    /// KL(P‖Q), in nats.
    Kl,
    /// KL(Q‖P), in nats.
    ReverseKl,
    /// Jensen–Shannon divergence, from 0 to ln 2 nats.
    Js,
    /// Total variation distance, from 0 to 1.
    Tv,
    /// Hellinger distance, from 0 to 1.
    Hellinger,
}

impl Measure {
    fn quantity(self) -> Quantity {
        match self {
            Measure::Kl => Quantity::Kl,
            Measure::ReverseKl => Quantity::ReverseKl,
            Measure::Js => Quantity::Js,
            Measure::Tv => Quantity::Tv,
            Measure::Hellinger => Quantity::Hellinger,
        }
    }
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let [of_p, of_q] = args.columns.read([&args.p, &args.q])?;
    let (p, q) = (Points::of(&of_p)?, Points::of(&of_q)?);
    let measures: Vec<Quantity> = match args.measure.is_empty() {
        true => Quantity::DIVERGENCES.to_vec(),
        false => args.measure.iter().map(|m| m.quantity()).collect(),
    };
    let estimator = Pretrained::shared()?;
    let work = |measures: &[Quantity]| {
        let work = |progress: &_| estimator.divergences_observed(p, q, measures, args.seed, progress);
        with_progress("estimating divergences", work)
    };
    let mut estimates = match work(&measures) {
        // Other methods estimate KL where the networks do not support the samples.
        Err(setwise::Error::UnsupportedSamples(_)) if args.measure.is_empty() => {
            work(&[Quantity::Kl, Quantity::ReverseKl])?
        }
        estimates => estimates?,
    };
    for estimate in &mut estimates {
        estimate.warnings.extend(file_warnings(&of_p, &of_q));
    }
    if args.json {
        return match &estimates[..] {
            [only] => print_json(only),
            all => print_json(&all),
        };
    }
    estimates.iter().try_for_each(|e| print_line(line(e)))?;
    print_line(format!("rows {} and {}, columns {}", p.len(), q.len(), p.dim()))?;
    let mut warnings: Vec<&String> = Vec::new();
    for warning in estimates.iter().flat_map(|e| &e.warnings) {
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    warnings.into_iter().try_for_each(|w| print_line(format!("warning: {w}")))
}

/// One divergence with its interval.
fn line(e: &Estimate) -> String {
    let unit = e.unit.map_or(String::new(), |unit| format!(" {unit}"));
    let interval = e.interval.map_or(String::new(), |[low, high]| {
        format!(", {:.0} % interval {} to {}", 100.0 * e.level, decimals(low), decimals(high))
    });
    format!("{:<8} = {}{unit}{interval}", e.quantity.symbol(), decimals(e.value))
}
