//! Relations between sets: attention or a pair network, followed by a feed-forward network.
//!
//! For each relation, with query set A and key set B (the paper's T_ab):
//!
//! ```text
//! U = LayerNorm(A + MHA(A, B))            or   LayerNorm(A + pool_j net(a_i, b_j))
//! T = LayerNorm(U + FF(U))                     FF = Linear, ReLU, Linear
//! ```
//!
//! Each stage is one operation for all relations. All projections of one value are one linear map.

use setwise_engine::{
    Activation, Attention, Init, Linear, Map, Op, Pair, Pairs, ProgramBuilder, Reduce, Relation as Attend, Slice, Value,
};

use super::{Sublayer, fresh_like, sublayers};

/// One relation.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Name of its weights; relations of the same name share them.
    pub name: String,
    /// The query set A.
    pub query: Value,
    /// The key set B.
    pub key: Value,
    /// The output, in the rows of the query set.
    pub out: Slice,
}

/// The first sublayer of a relation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RelationKind {
    /// Multi-head attention.
    Attention {
        /// Number of heads.
        heads: usize,
        /// Factor of the scores before the softmax.
        scale: f64,
        /// Whether projections have biases.
        bias: bool,
    },
    /// A network on pairs of a query and a key, reduced over keys.
    Pairs(Reduce),
}

/// Options of a relation.
#[derive(Clone, Copy, Debug)]
pub struct RelationOptions {
    /// Attention or pair network.
    pub kind: RelationKind,
    /// Width of the values.
    pub latent: usize,
    /// Width of hidden layers.
    pub hidden: usize,
    /// Whether a LayerNorm follows each of the two sublayers.
    pub norm: bool,
    /// Dropout rate of both sublayers.
    pub dropout: f64,
}

/// Appends all relations.
///
/// # Shapes
/// Queries and keys are `[rows, latent]`, outputs `[rows of the queries, latent]`.
pub fn relate(b: &mut ProgramBuilder, relations: &[Relation], options: RelationOptions) {
    let related = match options.kind {
        RelationKind::Attention { heads, scale, bias } => attend(b, relations, options, heads, scale, bias),
        RelationKind::Pairs(reduce) => pairs(b, relations, options, reduce),
    };
    let hidden = columns(b, relations, options.hidden);
    let maps = relations
        .iter()
        .zip(related.iter().zip(&hidden))
        .map(|(r, (&x, &y))| b.map(&format!("{}.expand", r.name), x, y, true))
        .collect();
    b.op(Op::Linear(Linear { maps, activation: Activation::Relu }));
    let last = relations
        .iter()
        .zip(related.iter().zip(&hidden))
        .map(|(r, (&residual, &x))| Sublayer {
            name: format!("{}.contract", r.name),
            x,
            y: r.out,
            bias: true,
            residual: Some(residual),
            norm: options.norm.then(|| format!("{}.feed-norm", r.name)),
        })
        .collect();
    sublayers(b, last, options.dropout);
}

/// Allocates `width` columns for each relation, in the rows of its query set. Relations of one query set share a value.
fn columns(b: &mut ProgramBuilder, relations: &[Relation], width: usize) -> Vec<Slice> {
    let mut values: Vec<(Value, Value, usize)> = Vec::new();
    for r in relations {
        if !values.iter().any(|v| v.0 == r.query) {
            let count = relations.iter().filter(|o| o.query == r.query).count();
            let value = fresh_like(b, r.query, count * width);
            values.push((r.query, value, 0));
        }
    }
    relations
        .iter()
        .map(|r| {
            let entry = values.iter_mut().find(|v| v.0 == r.query).expect("every query has its value");
            entry.2 += 1;
            Slice { value: entry.1, col: (entry.2 - 1) * width, cols: width }
        })
        .collect()
}

/// Projects query and key sets. `projections` lists the (source, name, width, bias) of each projection.
///
/// All projections of one source are columns of one value. `map` declares the parameters of a projection.
fn project(
    b: &mut ProgramBuilder,
    projections: &[(Value, String, usize, bool)],
    mut map: impl FnMut(&mut ProgramBuilder, &str, Slice, Slice, bool) -> Map,
) -> Vec<Slice> {
    let mut values: Vec<(Value, Value, usize)> = Vec::new();
    for (source, ..) in projections {
        if !values.iter().any(|v| v.0 == *source) {
            let width = projections.iter().filter(|p| p.0 == *source).map(|p| p.2).sum();
            let value = fresh_like(b, *source, width);
            values.push((*source, value, 0));
        }
    }
    let slices: Vec<Slice> = projections
        .iter()
        .map(|(source, _, width, _)| {
            let entry = values.iter_mut().find(|v| v.0 == *source).expect("every source has its value");
            entry.2 += width;
            Slice { value: entry.1, col: entry.2 - width, cols: *width }
        })
        .collect();
    // The first pass declares all weights of a source, the second its biases: each kind is contiguous, as one map
    // needs.
    let mut maps = Vec::new();
    for (source, ..) in values {
        let x = b.full(source);
        let of_source: Vec<usize> = (0..projections.len()).filter(|&i| projections[i].0 == source).collect();
        for &i in &of_source {
            map(b, &projections[i].1, x, slices[i], false);
        }
        maps.extend(of_source.iter().map(|&i| map(b, &projections[i].1, x, slices[i], projections[i].3)));
    }
    b.op(Op::Linear(Linear { maps, activation: Activation::None }));
    slices
}

/// `LayerNorm(A + MHA(A, B))` of all relations.
fn attend(
    b: &mut ProgramBuilder,
    relations: &[Relation],
    options: RelationOptions,
    heads: usize,
    scale: f64,
    bias: bool,
) -> Vec<Slice> {
    let mut projections = Vec::new();
    for r in relations {
        for (source, role) in [(r.query, "query"), (r.key, "key"), (r.key, "value")] {
            projections.push((source, format!("{}.{role}", r.name), options.latent, bias));
        }
    }
    let projected = project(b, &projections, |b, name, x, y, bias| b.map(name, x, y, bias));
    let attended = columns(b, relations, options.latent);
    let attends = relations
        .iter()
        .zip(projected.chunks_exact(3).zip(&attended))
        .map(|(r, (p, &out))| {
            // Two softmax statistics for each query and head; all dimensions of a row share one softmax.
            let space = b.spec(r.query).space;
            Attend { query: p[0], key: p[1], value: p[2], out, stats: b.saved(space, 2 * heads, false) }
        })
        .collect();
    b.op(Op::Attention(Attention { relations: attends, heads, scale }));
    let summed = columns(b, relations, options.latent);
    let last = relations
        .iter()
        .zip(attended.iter().zip(&summed))
        .map(|(r, (&x, &y))| Sublayer {
            name: format!("{}.output", r.name),
            x,
            y,
            bias,
            residual: Some(b.full(r.query)),
            norm: options.norm.then(|| format!("{}.relate-norm", r.name)),
        })
        .collect();
    sublayers(b, last, options.dropout);
    summed
}

/// `LayerNorm(A + reduce_j net(a_i, b_j))` of all relations.
fn pairs(b: &mut ProgramBuilder, relations: &[Relation], options: RelationOptions, reduce: Reduce) -> Vec<Slice> {
    let mut projections = Vec::new();
    for r in relations {
        projections.push((r.query, format!("{}.element", r.name), options.hidden, true));
        projections.push((r.key, format!("{}.partner", r.name), options.hidden, false));
    }
    // Both projections are parts of one layer with 2 · latent inputs, which determines their initialisation.
    let init = Init::Uniform(1.0 / (2.0 * options.latent as f64).sqrt());
    let projected = project(b, &projections, |b, name, x, y, bias| Map {
        x,
        weight: b.param(&format!("{name}.weight"), &[y.cols, x.cols], init),
        bias: bias.then(|| b.param(&format!("{name}.bias"), &[y.cols], init)),
        y,
        residual: None,
        norm: None,
    });
    let second = Init::Uniform(1.0 / (options.hidden as f64).sqrt());
    let mut nets = Vec::new();
    let mut results = Vec::new();
    for (r, p) in relations.iter().zip(projected.chunks_exact(2)) {
        let spec = b.spec(r.query);
        let y = fresh_like(b, r.query, options.latent);
        let saved_cols = if reduce == Reduce::Max { options.latent } else { options.hidden };
        nets.push(Pair {
            left: p[0],
            right: p[1],
            weight: b.param(&format!("{}.pair.weight", r.name), &[options.latent, options.hidden], second),
            bias: b.param(&format!("{}.pair.bias", r.name), &[options.latent], second),
            y: b.full(y),
            reduce,
            saved: b.saved(spec.space, saved_cols, spec.per_dim),
        });
        results.push(y);
    }
    b.op(Op::Pairs(Pairs { nets }));
    let summed = columns(b, relations, options.latent);
    for ((r, y), &out) in relations.iter().zip(results).zip(&summed) {
        let y = b.dropout(y, options.dropout);
        let norm = options.norm.then(|| b.norm(&format!("{}.relate-norm", r.name), out.value, out.cols));
        let inputs = vec![b.full(r.query), b.full(y)];
        b.op(Op::AddNorm(setwise_engine::AddNorm { inputs, y: out, norm }));
    }
    summed
}
