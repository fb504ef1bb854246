//! Relations between sets: attention or a pair network, followed by a feed-forward network.
//!
//! For each relation, with askers A and answerers B (the paper's T_ab):
//!
//! ```text
//! U = LayerNorm(A + MHA(A, B))            or   LayerNorm(A + pool_j net(a_i, b_j))
//! T = LayerNorm(U + FF(U))                     FF = Linear, ReLU, Linear
//! ```
//!
//! All relations run in one operation per stage. A value that asks or answers several times is projected once for all.

use setwise_engine::{
    Activation, Attention, Init, Linear, Map, Op, Pair, Pairs, ProgramBuilder, Reduce, Relation as Attend, Slice, Value,
};

use super::{Sublayer, fresh_like, sublayers};

/// One relation.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Of its weights; relations of one name share them.
    pub name: String,
    /// Askers.
    pub query: Value,
    /// Answerers.
    pub key: Value,
    /// Where the result goes, in the rows of the askers.
    pub out: Slice,
}

/// How elements find out about each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Relate {
    /// Multi-head attention.
    Attention {
        /// Number of heads.
        heads: usize,
        /// Factor of the scores.
        scale: f64,
        /// Whether projections have biases.
        bias: bool,
    },
    /// A network on pairs, reduced over answerers.
    Pairs(Reduce),
}

/// Sizes and switches of a relation.
#[derive(Clone, Copy, Debug)]
pub struct RelateOptions {
    /// Attention or pairs.
    pub relate: Relate,
    /// Width of the values.
    pub latent: usize,
    /// Width inside.
    pub hidden: usize,
    /// LayerNorm after both sublayers.
    pub norm: bool,
    /// Dropout of both sublayers.
    pub dropout: f64,
}

/// Appends all relations.
///
/// # Shapes
/// queries and keys `[rows, latent]`, outputs `[rows of the queries, latent]`.
pub fn relate(b: &mut ProgramBuilder, relations: &[Relation], options: RelateOptions) {
    let found = match options.relate {
        Relate::Attention { heads, scale, bias } => attend(b, relations, options, heads, scale, bias),
        Relate::Pairs(reduce) => pairs(b, relations, options, reduce),
    };
    let hidden = columns(b, relations, options.hidden);
    let maps = relations
        .iter()
        .zip(found.iter().zip(&hidden))
        .map(|(r, (&x, &y))| b.map(&format!("{}.expand", r.name), x, y, true))
        .collect();
    b.op(Op::Linear(Linear { maps, activation: Activation::Relu }));
    let last = relations
        .iter()
        .zip(found.iter().zip(&hidden))
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

/// For each relation some columns in a value of its queries' rows; relations with one query share a value.
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

/// Projections of every value that asks or answers: one value each, with columns for every use. `roles` gives for a relation the
/// (source, name, width, bias) of each projection it wants.
fn project(
    b: &mut ProgramBuilder,
    wanted: &[(Value, String, usize, bool)],
    mut map: impl FnMut(&mut ProgramBuilder, &str, Slice, Slice, bool) -> Map,
) -> Vec<Slice> {
    let mut values: Vec<(Value, Value, usize)> = Vec::new();
    for (source, ..) in wanted {
        if !values.iter().any(|v| v.0 == *source) {
            let width = wanted.iter().filter(|w| w.0 == *source).map(|w| w.2).sum();
            let value = fresh_like(b, *source, width);
            values.push((*source, value, 0));
        }
    }
    let slices: Vec<Slice> = wanted
        .iter()
        .map(|(source, _, width, _)| {
            let entry = values.iter_mut().find(|v| v.0 == *source).expect("every source has its value");
            entry.2 += width;
            Slice { value: entry.1, col: entry.2 - width, cols: *width }
        })
        .collect();
    // All weights of a source follow each other, then all its biases: together they are one linear map.
    let mut maps = Vec::new();
    for (source, ..) in values {
        let x = b.full(source);
        let mine: Vec<usize> = (0..wanted.len()).filter(|&i| wanted[i].0 == source).collect();
        for &i in &mine {
            map(b, &wanted[i].1, x, slices[i], false);
        }
        maps.extend(mine.iter().map(|&i| map(b, &wanted[i].1, x, slices[i], wanted[i].3)));
    }
    b.op(Op::Linear(Linear { maps, activation: Activation::None }));
    slices
}

/// `LayerNorm(A + MHA(A, B))` of all relations.
fn attend(
    b: &mut ProgramBuilder,
    relations: &[Relation],
    options: RelateOptions,
    heads: usize,
    scale: f64,
    bias: bool,
) -> Vec<Slice> {
    let mut wanted = Vec::new();
    for r in relations {
        for (source, role) in [(r.query, "query"), (r.key, "key"), (r.key, "value")] {
            wanted.push((source, format!("{}.{role}", r.name), options.latent, bias));
        }
    }
    let projected = project(b, &wanted, |b, name, x, y, bias| b.map(name, x, y, bias));
    let attended = columns(b, relations, options.latent);
    let attends = relations
        .iter()
        .zip(projected.chunks_exact(3).zip(&attended))
        .map(|(r, (p, &out))| {
            // Two numbers per query and head; dimension-equivariant rows have one softmax for all dimensions.
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
fn pairs(b: &mut ProgramBuilder, relations: &[Relation], options: RelateOptions, reduce: Reduce) -> Vec<Slice> {
    let mut wanted = Vec::new();
    for r in relations {
        wanted.push((r.query, format!("{}.own", r.name), options.hidden, true));
        wanted.push((r.key, format!("{}.partner", r.name), options.hidden, false));
    }
    // Both parts are one layer of 2 · latent inputs.
    let init = Init::Uniform(1.0 / (2.0 * options.latent as f64).sqrt());
    let projected = project(b, &wanted, |b, name, x, y, bias| Map {
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
        let kept_cols = if reduce == Reduce::Max { options.latent } else { options.hidden };
        nets.push(Pair {
            left: p[0],
            right: p[1],
            weight: b.param(&format!("{}.pair.weight", r.name), &[options.latent, options.hidden], second),
            bias: b.param(&format!("{}.pair.bias", r.name), &[options.latent], second),
            y: b.full(y),
            reduce,
            saved: b.saved(spec.space, kept_cols, spec.per_dim),
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
