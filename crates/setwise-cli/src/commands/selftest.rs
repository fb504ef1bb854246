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
    /// Run only cases whose name contains this text; --verbose prints the names.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print every comparison.
    #[arg(long)]
    verbose: bool,
}

/// Runs it.
#[cfg(not(feature = "cuda"))]
pub fn run(args: Args) -> Result<(), Failure> {
    let _ = (args.seed, args.only, args.verbose);
    args.device.open()?;
    Err(Failure::usage("selftest compares a GPU with the CPU; choose a GPU with --device cuda"))
}

/// Runs it.
#[cfg(feature = "cuda")]
pub fn run(args: Args) -> Result<(), Failure> {
    use std::collections::BTreeSet;

    use super::print_line;
    let setwise::Device::Cuda { device, precision } = args.device.open()? else {
        return Err(Failure::usage("selftest compares a GPU with the CPU; choose a GPU with --device cuda"));
    };
    let (mut cases, mut printed) = (BTreeSet::new(), Ok(()));
    let checks = setwise_lab::selftest::run(&device, precision, args.seed, args.only.as_deref(), &mut |c| {
        cases.insert(c.case.clone());
        if (args.verbose || !c.passed()) && printed.is_ok() {
            let verdict = if c.passed() { "ok    " } else { "FAILED" };
            let (error, tolerance) = (c.error, c.tolerance);
            printed = print_line(format!("{verdict} {error:9.2e} of {tolerance:7.0e}  {}, {}", c.case, c.what));
        }
    })?;
    printed?;
    if checks.is_empty() {
        return Err(Failure::usage(format!("--only {}: no case has this in its name", args.only.unwrap_or_default())));
    }
    let failed = checks.iter().filter(|c| !c.passed()).count();
    for what in ["outputs", "gradients of inputs", "gradients of parameters"] {
        let mut errors: Vec<f64> = checks.iter().filter(|c| c.what == what).map(|c| c.error).collect();
        errors.sort_by(f64::total_cmp);
        if errors.is_empty() {
            continue;
        }
        let (median, max) = (errors[errors.len() / 2], errors[errors.len() - 1]);
        print_line(format!("{what}: median relative error {median:.1e}, maximum {max:.1e}, {} cases", errors.len()))?;
    }
    let (name, driver) = (&device.name, device.driver);
    print_line(format!(
        "{name}, driver {}.{}, {precision:?}: {} cases, {} comparisons, {failed} failed",
        driver / 1000,
        driver % 1000 / 10,
        cases.len(),
        checks.len()
    ))?;
    match failed {
        0 => Ok(()),
        n => Err(Failure::other(format!("{n} comparisons exceed their tolerance"))),
    }
}
