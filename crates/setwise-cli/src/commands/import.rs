//! `setwise import REF -o MODEL`

use std::path::PathBuf;

use clap::ValueEnum;
use setwise::models::RelationPool;
use setwise_lab::import::{ReferenceOptions, import_reference};

use super::{check_not_input, print_line};
use crate::failure::Failure;

/// Arguments of `import`.
#[derive(clap::Args)]
pub struct Args {
    /// State dict of the paper's PyTorch code, saved as safetensors.
    reference: PathBuf,
    /// Model file to write.
    #[arg(short, long, value_name = "MODEL")]
    out: PathBuf,
    /// Number of attention heads, which the state dict does not hold.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Pooling of a multi-set relation network, which the state dict does not hold.
    #[arg(long, value_enum, default_value_t = Pool::Max)]
    relation_pool: Pool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pool {
    Max,
    Sum,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    check_not_input(&args.out, [args.reference.as_path()])?;
    let relation_pool = match args.relation_pool {
        Pool::Max => RelationPool::Max,
        Pool::Sum => RelationPool::Sum,
    };
    let model = import_reference(&args.reference, ReferenceOptions { heads: args.heads, relation_pool })?;
    model.save(&args.out)?;
    let c = model.config();
    print_line(format!(
        "{}: {} encoder, {} sets, relations {}, merge {}, sharing {}, {} blocks, {} heads, latent {}, hidden {}, \
         {} parameters",
        args.out.display(),
        name(c.encoder),
        c.sets,
        name(c.relations),
        name(c.merge),
        name(c.sharing),
        c.blocks,
        c.heads,
        c.latent,
        c.hidden,
        model.params().len()
    ))
}

/// The name of a choice in config files.
fn name(choice: impl serde::Serialize) -> String {
    match serde_json::to_value(choice) {
        Ok(serde_json::Value::String(s)) => s,
        _ => String::new(),
    }
}
