//! `setwise embed DIR --encoder MODEL.onnx -o FILE`

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use setwise_lab::embed::{Encoder, Preparation, embed_images, images_in};

use super::{check_not_input, print_line};
use crate::failure::Failure;

/// Arguments of `embed`.
#[derive(clap::Args)]
pub struct Args {
    /// A folder of images (JPEG, PNG).
    folder: PathBuf,
    /// The encoder: an ONNX network with one image as its input.
    #[arg(long, value_name = "MODEL.onnx")]
    encoder: PathBuf,
    /// File for the features: NPY if its name ends in .npy, otherwise safetensors.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Pixels of the shorter side after resizing; 0 keeps the size.
    #[arg(long, value_name = "PIXELS", default_value_t = 256)]
    resize: usize,
    /// Side of the centre crop.
    #[arg(long, value_name = "PIXELS", default_value_t = 224)]
    crop: usize,
    /// Mean of red, green and blue, subtracted from pixels in [0, 1].
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0.485,0.456,0.406", allow_hyphen_values = true)]
    mean: Vec<f32>,
    /// Standard deviation of red, green and blue; pixels are divided by it.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0.229,0.224,0.225")]
    std: Vec<f32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let preparation = Preparation {
        resize: (args.resize > 0).then_some(args.resize),
        crop: args.crop,
        mean: rgb("--mean", &args.mean)?,
        deviation: rgb("--std", &args.std)?,
    };
    preparation.check()?;
    if let Some(parent) = args.out.parent().filter(|p| !p.as_os_str().is_empty() && !p.is_dir()) {
        return Err(Failure::usage(format!("{}: folder does not exist; create it first", parent.display())));
    }
    let encoder = Encoder::load(&args.encoder, &preparation)?;
    let images = images_in(&args.folder)?;
    check_not_input(&args.out, images.iter().chain([&args.encoder]).map(PathBuf::as_path))?;
    let bar = ProgressBar::with_draw_target(Some(images.len() as u64), ProgressDrawTarget::stderr_with_hz(5));
    let style = "{bar:24} {pos}/{len} images  {per_sec}  {eta} left";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    let features = embed_images(&images, |image| encoder.encode(image), || bar.inc(1));
    bar.finish_and_clear();
    let features = features?;
    features.save(&args.out)?;
    if args.json {
        return print_line(serde_json::json!({
            "output": args.out, "images": features.names.len(), "width": features.width, "encoder": args.encoder,
        }));
    }
    print_line(format!(
        "{}: {} features of each of {} images",
        args.out.display(),
        features.width,
        features.names.len()
    ))
}

/// The values of red, green and blue, from one value for all or one for each.
fn rgb(option: &str, values: &[f32]) -> Result<[f32; 3], Failure> {
    match *values {
        [all] => Ok([all; 3]),
        [red, green, blue] => Ok([red, green, blue]),
        _ => {
            Err(Failure::usage(format!("{option}: has {} numbers; give 1, or 3 for red, green and blue", values.len())))
        }
    }
}
