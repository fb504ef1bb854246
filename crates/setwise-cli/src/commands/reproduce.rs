//! `setwise reproduce TABLE`

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use setwise::reproduce::{Reproduction, dependence, divergence, scaling};

use super::say;
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
        /// Rows, separated by commas; all if not given.
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Columns, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
        dims: Vec<usize>,
        /// Fresh examples for each number.
        #[arg(long, default_value_t = 10_000)]
        examples: usize,
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
        common: Common,
    },
    /// Table 5: how time grows with set size and width.
    Scaling {
        /// Architectures, separated by commas; all if not given.
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Set sizes, separated by commas.
        #[arg(long, value_delimiter = ',', default_value = "32,64,128,256,512")]
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

#[derive(clap::Args)]
struct Common {
    /// Seed of the fresh examples.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder with the folders of runs.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Write the table as Markdown, CSV and JSON and figures as SVG and PNG into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Markdown)]
    format: Format,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Markdown,
    Csv,
    Json,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let progress = &mut |what: &str| eprintln!("measuring {what}");
    let (result, common) = match args.table {
        Which::Kl { models, dims, examples, common } => {
            at_least_one(examples)?;
            let options = divergence::Options { models, dims, examples, seed: common.seed, runs: common.runs.clone() };
            (divergence::reproduce(&options, progress)?, common)
        }
        Which::Mi { models, dims, examples, mine_examples, common } => {
            at_least_one(examples.min(mine_examples))?;
            let (seed, runs) = (common.seed, common.runs.clone());
            let options = dependence::Options { models, dims, examples, mine_examples, seed, runs };
            (dependence::reproduce(&options, progress)?, common)
        }
        Which::Scaling { models, sizes, widths, batch, common } => {
            let least = Duration::from_millis(100);
            (scaling::reproduce(&scaling::Options { models, sizes, widths, batch, least }, progress)?, common)
        }
    };
    if let Some(folder) = &common.out {
        write(&result, folder)?;
    }
    match common.format {
        _ if common.json => say(&result.json),
        Format::Json => say(&result.json),
        Format::Csv => say(result.table.to_csv().trim_end()),
        Format::Markdown => {
            say(result.table.to_markdown().trim_end())?;
            result.notes.iter().try_for_each(|note| say(format!("\n{note}")))
        }
    }
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
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    for extension in ["md", "csv"] {
        result.table.save(folder.join(format!("{}.{extension}", result.name)))?;
    }
    let path = folder.join(format!("{}.json", result.name));
    std::fs::write(&path, format!("{:#}\n", result.json)).map_err(io(&path))?;
    for (name, figure) in &result.figures {
        for extension in ["svg", "png"] {
            figure.save(folder.join(format!("{name}.{extension}")))?;
        }
    }
    Ok(())
}
