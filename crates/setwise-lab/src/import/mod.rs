//! Weights of the published PyTorch code, read into models that compute the same function.
//!
//! Names and shapes determine the architecture. The import reproduces these properties of the published code:
//!
//! * Attention is scaled by the root of the latent width.
//! * Cross-only models pool both sets with the first set's weights.
//! * Single-set relation networks always sum.
//! * Feed-forward encoders have neither residual nor norm.

mod architectures;
mod state;

use std::path::Path;

use setwise::files::tensors::TensorFile;
use setwise::models::{Model, RelationPool, collect_params, program};
use setwise_engine::Mode;

use crate::{Error, Result};
use architectures::recognise;
use state::State;

/// Options that names and shapes do not determine.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOptions {
    /// Number of attention heads.
    pub heads: usize,
    /// Pooling over partners of multi-set relation networks.
    pub relation_pool: RelationPool,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        ReferenceOptions { heads: 4, relation_pool: RelationPool::Max }
    }
}

/// Reads a state dict saved by the published PyTorch code as safetensors, names with or without a leading `w.`.
pub fn import_reference(path: impl AsRef<Path>, options: ReferenceOptions) -> Result<Model> {
    let path = path.as_ref();
    let file = TensorFile::read(path)?;
    let bad = |reason: String| -> Error { setwise::Error::ModelFile { path: path.to_owned(), reason }.into() };
    let mut state = State::new(file.tensors);
    let config = recognise(&mut state, options).map_err(bad)?;
    let config = config.validate().map_err(|e| bad(e.to_string()))?;
    let layout = program(&config, Mode::Infer, false).params().clone();
    if let Some(spec) = layout.specs().iter().find(|s| !state.mapped.contains_key(&s.name)) {
        return Err(bad(format!("has no tensor for {:?} of shape {:?}", spec.name, spec.shape)));
    }
    let params = collect_params(&layout, |name| {
        let t = &state.mapped[name];
        (t.shape.clone(), t.data.as_slice())
    })
    .map_err(bad)?;
    Ok(Model::with_params(config, params))
}
