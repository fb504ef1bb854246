//! `setwise selftest --device cuda`

use super::DeviceArgs;
use crate::failure::Failure;

/// Arguments of `selftest`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Seed of the random inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only cases whose name has this in it, as --verbose shows them.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Show every comparison.
    #[arg(long)]
    verbose: bool,
}

/// Runs it.
#[cfg(not(feature = "cuda"))]
pub fn run(args: Args) -> Result<(), Failure> {
    let _ = (args.seed, args.only, args.verbose);
    args.device.find()?;
    Err(Failure::usage("selftest holds a GPU against the CPU; --device cuda chooses one"))
}

/// Runs it.
#[cfg(feature = "cuda")]
pub fn run(args: Args) -> Result<(), Failure> {
    use std::collections::BTreeSet;

    use super::print_line;
    let setwise::Device::Cuda { device, precision } = args.device.find()? else {
        return Err(Failure::usage("selftest holds a GPU against the CPU; --device cuda chooses one"));
    };
    let mut cases = BTreeSet::new();
    let checks = setwise_lab::selftest::run(&device, precision, args.seed, args.only.as_deref(), &mut |c| {
        cases.insert(c.case.clone());
        if args.verbose || !c.passed() {
            let verdict = if c.passed() { "ok    " } else { "MISSED" };
            println!("{verdict} {:9.2e} of {:7.0e}  {}, {}", c.error, c.tolerance, c.case, c.what);
        }
    })?;
    if checks.is_empty() {
        return Err(Failure::usage(format!("no case has {:?} in its name", args.only.unwrap_or_default())));
    }
    let missed = checks.iter().filter(|c| !c.passed()).count();
    for what in ["outputs", "gradients of inputs", "gradients of parameters"] {
        let mut errors: Vec<f64> = checks.iter().filter(|c| c.what == what).map(|c| c.error).collect();
        errors.sort_by(f64::total_cmp);
        if errors.is_empty() {
            continue;
        }
        let (middle, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
        print_line(format!(
            "{what}: relative error {middle:.1e} in the middle, {worst:.1e} at worst, over {} cases",
            errors.len()
        ))?;
    }
    let (name, driver) = (&device.name, device.driver);
    print_line(format!(
        "{name}, driver {}.{}, {precision:?}: {} cases, {} comparisons, {missed} missed",
        driver / 1000,
        driver % 1000 / 10,
        cases.len(),
        checks.len()
    ))?;
    match missed {
        0 => Ok(()),
        n => Err(Failure::other(format!("{n} comparisons missed their tolerance"))),
    }
}
