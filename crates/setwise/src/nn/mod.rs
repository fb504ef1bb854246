//! Layers of models, built from *relations*: a query value and a key value with a name for their weights.
//!
//! A multi-set block on K sets is K² relations. Pooling by attention is a relation from learned seeds to a set.

mod decoder;
mod encoder;
mod feed_forward;
mod pooling;
mod relate;

pub(crate) use decoder::decoder;
pub(crate) use encoder::{ENCODER, Layer, encode_images};
pub(crate) use feed_forward::{FeedForwardOptions, feed_forward};
pub(crate) use pooling::{PoolKind, max_over_dimensions, pool};
pub use relate::{Relation, RelationKind, RelationOptions, relate};

use setwise_engine::{AddNorm, Linear, Map, Op, ProgramBuilder, Slice, Value};

/// A new value in the space of `like`, with `cols` columns.
pub(crate) fn fresh_like(b: &mut ProgramBuilder, like: Value, cols: usize) -> Value {
    let spec = b.spec(like);
    b.fresh(spec.space, cols, spec.per_dim)
}

/// Appends `y = LayerNorm(residual + dropout(x·Wᵀ + b))` for each sublayer; residual and norm are optional.
///
/// Without dropout, all sublayers are one operation. With dropout, the sum and the norm are operations after the mask.
pub(crate) fn sublayers(b: &mut ProgramBuilder, sublayers: Vec<Sublayer>, dropout: f64) {
    let has_dropout = b.training() && dropout > 0.0;
    let mut maps = Vec::new();
    let mut deferred = Vec::new();
    for s in sublayers {
        let norm = s.norm.as_ref().map(|name| b.norm(name, s.y.value, s.y.cols));
        if has_dropout {
            let product = fresh_like(b, s.y.value, s.y.cols);
            let out = b.full(product);
            maps.push(b.map(&s.name, s.x, out, s.bias));
            deferred.push((product, s.residual, s.y, norm));
        } else {
            let map = b.map(&s.name, s.x, s.y, s.bias);
            maps.push(Map { residual: s.residual, norm, ..map });
        }
    }
    b.op(Op::Linear(Linear { maps, activation: setwise_engine::Activation::None }));
    for (product, residual, y, norm) in deferred {
        let product = b.dropout(product, dropout);
        let inputs = residual.into_iter().chain([b.full(product)]).collect();
        b.op(Op::AddNorm(AddNorm { inputs, y, norm }));
    }
}

/// One linear map with its residual and norm.
pub(crate) struct Sublayer {
    /// Name of the map's parameters.
    pub name: String,
    pub x: Slice,
    pub y: Slice,
    pub bias: bool,
    pub residual: Option<Slice>,
    /// Name of the norm's parameters, if there is a norm.
    pub norm: Option<String>,
}
