//! The blocks models are made of, written over *relations*: an asking value and an answering value with a name for their
//! weights. A multi-set block is K² of them, pooling by attention is seeds asking a set; both run through the same operations.

mod decoder;
mod encoder;
mod feed_forward;
mod pooling;
mod relate;

pub use decoder::decoder;
pub use encoder::{ENCODER, Layer, encode_images};
pub use feed_forward::{FeedForwardOptions, feed_forward};
pub(crate) use pooling::max_over_dimensions;
pub use pooling::{PoolKind, pool};
pub use relate::{Relate, RelateOptions, Relation, relate};

use setwise_engine::{AddNorm, Linear, Map, Op, ProgramBuilder, Slice, Value};

/// A fresh value shaped like `like` with `cols` columns.
pub(crate) fn fresh_like(b: &mut ProgramBuilder, like: Value, cols: usize) -> Value {
    let spec = b.spec(like);
    b.fresh(spec.space, cols, spec.per_dim)
}

/// Linear maps that each end in `LayerNorm(residual + dropout(product))`, residual and norm optional.
///
/// Without dropout everything is one operation; with it the sum and the norm follow the mask.
pub(crate) fn sublayers(b: &mut ProgramBuilder, sublayers: Vec<Sublayer>, dropout: f64) {
    let masked = b.training() && dropout > 0.0;
    let mut maps = Vec::new();
    let mut after = Vec::new();
    for s in sublayers {
        let norm = s.norm.as_ref().map(|name| b.norm(name, s.y.value, s.y.cols));
        if masked {
            let product = fresh_like(b, s.y.value, s.y.cols);
            let whole = b.full(product);
            maps.push(b.map(&s.name, s.x, whole, s.bias));
            after.push((product, s.residual, s.y, norm));
        } else {
            let map = b.map(&s.name, s.x, s.y, s.bias);
            maps.push(Map { residual: s.residual, norm, ..map });
        }
    }
    b.op(Op::Linear(Linear { maps, activation: setwise_engine::Activation::None }));
    for (product, residual, y, norm) in after {
        let product = b.dropout(product, dropout);
        let inputs = residual.into_iter().chain([b.full(product)]).collect();
        b.op(Op::AddNorm(AddNorm { inputs, y, norm }));
    }
}

/// One linear map with what follows it.
pub(crate) struct Sublayer {
    /// Of the map's parameters.
    pub name: String,
    pub x: Slice,
    pub y: Slice,
    pub bias: bool,
    pub residual: Option<Slice>,
    /// Of the norm's parameters, if there is a norm.
    pub norm: Option<String>,
}
