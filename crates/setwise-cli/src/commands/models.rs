//! `setwise models`

use comfy_table::{Table, presets};
use setwise::ModelConfig;
use setwise::estimate::Pretrained;
use setwise::models::{ImageEncoder, Images, PRESETS};

use super::{print_json, print_line};
use crate::failure::Failure;

/// Summary of the pretrained estimator.
const PRETRAINED: &str = "the KL divergence of two samples with a 90 % interval";

/// Arguments of `models`.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON, with the config of every preset or of --config.
    #[arg(long)]
    json: bool,
    /// Print the config of one preset as TOML, or with --json as JSON.
    #[arg(long, value_name = "PRESET")]
    config: Option<String>,
    /// Columns of the sets in the printed configs.
    #[arg(long, default_value_t = 2)]
    dim: usize,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(name) = &args.config {
        let config = ModelConfig::preset(name, args.dim)?.validate()?;
        if args.json {
            return print_json(&*config);
        }
        let text = toml::to_string(&*config).map_err(|e| Failure::other(e.to_string()))?;
        return print_line(text.trim_end());
    }
    if args.json {
        let mut all = Vec::new();
        for p in PRESETS {
            let config = ModelConfig::preset(p.name, args.dim)?.validate()?;
            all.push(
                serde_json::json!({"name": p.name, "summary": p.summary, "operations": p.complexity, "config": *config}),
            );
        }
        let encoders: Vec<_> = ImageEncoder::ALL
            .iter()
            .map(|&(name, e)| serde_json::json!({"name": name, "summary": e.summary(), "images": Images::new(e)}))
            .collect();
        let ranges = Pretrained::built_in()?.ranges();
        let kl = serde_json::json!({
            "name": "kl", "summary": PRETRAINED, "columns": ranges.dims, "rows_from": ranges.rows[0],
            "rows_trained_to": ranges.rows[1], "max_divergence": ranges.max_divergence,
            "bytes": Pretrained::built_in_size(),
        });
        return print_line(serde_json::json!({"architectures": all, "image_encoders": encoders, "pretrained": [kl]}));
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["architecture", "operations", "summary"]);
    for p in PRESETS {
        table.add_row([p.name, p.complexity, p.summary]);
    }
    print_line(table.trim_fmt())?;
    print_line("\nn and m are set sizes, d is the width. `setwise models --config NAME` prints a config.\n")?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["image encoder", "default size", "summary"]);
    for (name, encoder) in ImageEncoder::ALL {
        let Images { height, width, channels, .. } = Images::new(encoder);
        table.add_row([name.to_owned(), format!("{height}×{width}×{channels}"), encoder.summary().to_owned()]);
    }
    print_line(table.trim_fmt())?;
    print_line(
        "\nAn image encoder precedes any architecture except the dimension-equivariant one. `[model.images]` names the\n\
         encoder, and height, width, channels and features where they differ from the defaults. Batch norm and ReLU\n\
         follow every convolution.",
    )?;
    let r = Pretrained::built_in()?.ranges();
    print_line(format!(
        "\nPretrained: kl, {PRETRAINED} (`setwise kl P Q`). Trained for {} to {} columns, {} to {} rows per sample\n\
         (larger samples are split into chunks) and up to {:.0} nats.",
        r.dims[0], r.dims[1], r.rows[0], r.rows[1], r.max_divergence
    ))
}
