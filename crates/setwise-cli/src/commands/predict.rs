//! `setwise predict MODEL A B …`

use std::path::PathBuf;

use setwise::Model;
use setwise::data::Preparation;
use setwise::files::Sample;

use super::{DeviceArgs, print_line};
use crate::failure::Failure;

/// Arguments of `predict`.
#[derive(clap::Args)]
pub struct Args {
    /// Model file.
    model: PathBuf,
    /// One file per set: CSV, TSV or NPY; `-` is standard input.
    ///
    /// NPY holds one set [n, d] or a stack of examples [batch, n, d]. Models of images also take
    /// [n, height, width] and [n, height, width, channels], bytes or numbers from 0 to 1.
    #[arg(required = true)]
    sets: Vec<PathBuf>,
    /// Neither prepare the sets nor transform the outputs.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut model = Model::load(&args.model)?;
    model.use_device(&args.device.open()?)?;
    let sets = model.config().sets;
    if args.sets.len() != sets {
        let (expected, given) = (plural(sets), plural(args.sets.len()));
        return Err(Failure::usage(format!("{} takes {expected}, {given} given", args.model.display())));
    }
    if args.sets.iter().filter(|p| p.as_os_str() == "-").count() > 1 {
        return Err(Failure::usage("standard input (-) can be only one of the sets"));
    }
    let read = |path| match &model.config().images {
        Some(images) => Sample::read_images(path, images),
        None => Sample::read(path),
    };
    let samples = args.sets.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let preparation = if args.raw { Ok(Preparation::identity()) } else { Preparation::of(&model) };
    let preparation = preparation.map_err(|e| {
        let (model, hint) = (args.model.display(), "--raw predicts without preparation");
        Failure::usage(format!("{model}: cannot prepare sets as in training: {e}; {hint}"))
    })?;
    preparation.check_widths(&model, &samples).map_err(|e| Failure::usage(e.to_string()))?;
    let predictions = preparation.decode(model.predict(&preparation.batch(samples)?)?);
    if args.json {
        let results: Vec<serde_json::Value> = (0..predictions.examples())
            .map(|i| {
                if !predictions.per_element() {
                    return serde_json::json!(predictions.example(i));
                }
                let vectors = |set| predictions.set(i, set).chunks(predictions.width()).collect::<Vec<_>>();
                serde_json::json!((0..sets).map(vectors).collect::<Vec<_>>())
            })
            .collect();
        let mut all = serde_json::json!({
            "model": args.model,
            "examples": predictions.examples(),
            "output": if predictions.per_element() { "equivariant" } else { "invariant" },
            "results": results,
        });
        if let Some(levels) = preparation.levels() {
            all["levels"] = serde_json::json!(levels);
        }
        return print_line(all);
    }
    for i in 0..predictions.examples() {
        let text = |vector: &[f32]| vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" ");
        if !predictions.per_element() {
            print_line(text(predictions.example(i)))?;
            continue;
        }
        for set in 0..sets {
            for (element, vector) in predictions.set(i, set).chunks(predictions.width()).enumerate() {
                print_line(format!("{} {} {} {}", i + 1, set + 1, element + 1, text(vector)))?;
            }
        }
    }
    Ok(())
}

fn plural(n: usize) -> String {
    if n == 1 { "1 set".to_owned() } else { format!("{n} sets") }
}
