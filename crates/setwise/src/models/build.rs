//! Lowers a config to its program.

use setwise_engine::{
    Activation, AddNorm, FromUnion, Init, Linear, Mode, Op, PineSum, Program, ProgramBuilder, Reduce, Slice, Space,
    ToUnion, Value,
};

use super::config::{
    AttentionScale, Encoder, Merge, ModelConfig, OutputKind, Pooling, RelationPool, Relations, Sharing, ValidConfig,
};
use crate::nn::{
    FeedForwardOptions, PoolKind, Relation, RelationKind, RelationOptions, Sublayer, decoder, encode_images,
    feed_forward, fresh_like, max_over_dimensions, pool, relate, sublayers,
};

/// The program of a config for training or inference. With `input_grad`, the backward pass also computes input
/// gradients.
pub fn program(config: &ValidConfig, mode: Mode, input_grad: bool) -> Program {
    let c: &ModelConfig = config;
    let widths = if c.dimension_equivariant { vec![1; c.sets] } else { c.input_widths.clone() };
    let mut b = Program::builder(&widths, c.dimension_equivariant, mode, input_grad);
    let mut xs: Vec<Value> = (0..c.sets).map(|k| b.input(k)).collect();
    if let Some(images) = &c.images {
        xs = encode_images(&mut b, &xs, images.image(), images.encoder.layers(), images.features);
    }
    if c.encoder == Encoder::Pine {
        let out = pine(&mut b, c, &xs);
        return b.finish(vec![out]);
    }
    xs = project_inputs(&mut b, c, &xs);
    if c.relations == Relations::Union {
        let spec = b.spec(xs[0]);
        let y = b.fresh(Space::Union, spec.cols, spec.per_dim);
        let encodings = if c.set_encoding {
            (0..c.sets).map(|k| b.param(&format!("encoding.{k}"), &[c.latent], Init::Normal(1.0))).collect()
        } else {
            Vec::new()
        };
        b.op(Op::ToUnion(ToUnion { sets: xs, encodings, y }));
        xs = vec![y];
    }
    for block in 0..c.blocks {
        xs = encoder_block(&mut b, c, block, &xs);
    }
    if c.dimension_equivariant {
        xs = xs.into_iter().map(|x| max_over_dimensions(&mut b, x)).collect();
    }
    let outputs = match c.output {
        OutputKind::Invariant => {
            let pooled = pool_sets(&mut b, c, &xs);
            decoder(&mut b, &[pooled], c.hidden, c.decoder_layers, c.output_width)
        }
        OutputKind::Equivariant => {
            if c.relations == Relations::Union {
                let cols = b.spec(xs[0]).cols;
                let sets: Vec<Value> = (0..c.sets).map(|k| b.fresh(Space::Set(k), cols, false)).collect();
                b.op(Op::FromUnion(FromUnion { x: xs[0], sets: sets.clone() }));
                xs = sets;
            }
            decoder(&mut b, &xs, c.hidden, c.decoder_layers, c.output_width)
        }
    };
    b.finish(outputs)
}

/// Projects each set to the latent width, if its width differs or the config always projects.
fn project_inputs(b: &mut ProgramBuilder, c: &ModelConfig, inputs: &[Value]) -> Vec<Value> {
    let mut maps = Vec::new();
    let mut xs = Vec::new();
    for (k, &x) in inputs.iter().enumerate() {
        if b.spec(x).cols == c.latent && !c.always_project {
            xs.push(x);
            continue;
        }
        let y = fresh_like(b, x, c.latent);
        let name = if c.share_projection { "input.shared".to_owned() } else { format!("input.{k}") };
        let (x, out) = (b.full(x), b.full(y));
        maps.push(b.map(&name, x, out, true));
        xs.push(y);
    }
    if !maps.is_empty() {
        b.op(Op::Linear(Linear { maps, activation: Activation::None }));
    }
    xs
}

/// The key sets of query set `a`: `a` first, then the others in order.
fn partners(c: &ModelConfig, sets: usize, a: usize) -> Vec<usize> {
    let others = (0..sets).filter(|&b| b != a);
    match c.relations {
        Relations::All => std::iter::once(a).chain(others).collect(),
        Relations::Cross => others.collect(),
        Relations::SelfOnly | Relations::Union => vec![a],
    }
}

/// Name of the weights of relation (a, b), by the config's sharing.
fn relation_name(c: &ModelConfig, a: usize, b: usize) -> String {
    match c.sharing {
        Sharing::Cross if a != b => "cross".to_owned(),
        Sharing::Sym => if a == b { "self" } else { "cross" }.to_owned(),
        _ => format!("{a}-{b}"),
    }
}

/// Options of the relations inside the blocks.
fn relation_options(c: &ModelConfig) -> RelationOptions {
    let kind = match c.encoder {
        Encoder::RelationNetwork => RelationKind::Pairs(match c.relation_pool {
            RelationPool::Max => Reduce::Max,
            RelationPool::Sum => Reduce::Sum,
        }),
        _ => attention(c, !c.dimension_equivariant),
    };
    RelationOptions { kind, latent: c.latent, hidden: c.hidden, norm: c.inner_norm, dropout: c.dropout }
}

fn attention(c: &ModelConfig, bias: bool) -> RelationKind {
    let width = match c.attention_scale {
        AttentionScale::Head => c.latent / c.heads,
        AttentionScale::Latent => c.latent,
    };
    RelationKind::Attention { heads: c.heads, scale: 1.0 / (width as f64).sqrt(), bias }
}

/// One block: `Z_a = LayerNorm(X_a + g_a(T_aa, T_ab, …))`, with relations T and merge g.
fn encoder_block(b: &mut ProgramBuilder, c: &ModelConfig, block: usize, xs: &[Value]) -> Vec<Value> {
    if c.encoder == Encoder::FeedForward {
        let names: Vec<_> = (0..xs.len()).map(|a| format!("block.{block}.{}", relation_name(c, a, a))).collect();
        let options = FeedForwardOptions {
            hidden: c.hidden,
            layers: c.feed_forward_layers,
            residual: c.inner_residual,
            norm: c.inner_norm,
            dropout: c.dropout,
        };
        let outputs = feed_forward(b, xs, &names, options);
        return merge(b, c, block, xs, &outputs, 1);
    }
    let mut relations = Vec::new();
    let mut outputs = Vec::new();
    for (a, &query) in xs.iter().enumerate() {
        let partners = partners(c, xs.len(), a);
        let out = fresh_like(b, query, partners.len() * c.latent);
        for (i, &p) in partners.iter().enumerate() {
            relations.push(Relation {
                name: format!("block.{block}.{}", relation_name(c, a, p)),
                query,
                key: xs[p],
                out: Slice { value: out, col: i * c.latent, cols: c.latent },
            });
        }
        outputs.push(out);
    }
    relate(b, &relations, relation_options(c));
    let count = partners(c, xs.len(), 0).len();
    merge(b, c, block, xs, &outputs, count)
}

/// Merges the `count` relation outputs of each set, adds the residual and normalises.
///
/// # Shapes
/// `xs` are `[rows, latent]`, `relations` are `[rows, count · latent]`.
fn merge(
    b: &mut ProgramBuilder,
    c: &ModelConfig,
    block: usize,
    xs: &[Value],
    relations: &[Value],
    count: usize,
) -> Vec<Value> {
    let name = |kind: &str, a: usize| {
        let set = if c.sharing == Sharing::Sym { "shared".to_owned() } else { a.to_string() };
        format!("block.{block}.{kind}.{set}")
    };
    let norm_name = |a: usize| c.outer_norm.then(|| name("norm", a));
    if c.merge == Merge::Sum {
        if count == 1 && !c.outer_residual && !c.outer_norm {
            return relations.to_vec();
        }
        let mut merged = Vec::new();
        for (a, (&x, &t)) in xs.iter().zip(relations).enumerate() {
            let y = fresh_like(b, x, c.latent);
            let norm = norm_name(a).map(|n| b.norm(&n, y, c.latent));
            let terms = (0..count).map(|i| Slice { value: t, col: i * c.latent, cols: c.latent });
            let inputs = c.outer_residual.then(|| b.full(x)).into_iter().chain(terms).collect();
            b.op(Op::AddNorm(AddNorm { inputs, y: b.full(y), norm }));
            merged.push(y);
        }
        return merged;
    }
    let merged: Vec<Value> = xs.iter().map(|&x| fresh_like(b, x, c.latent)).collect();
    if c.merge == Merge::Concat {
        let last = (0..xs.len())
            .map(|a| Sublayer {
                name: name("merge", a),
                x: b.full(relations[a]),
                y: b.full(merged[a]),
                bias: true,
                residual: c.outer_residual.then(|| b.full(xs[a])),
                norm: norm_name(a),
            })
            .collect();
        sublayers(b, last, 0.0);
        return merged;
    }
    let mut maps = Vec::new();
    let mut activations = Vec::new();
    for a in 0..xs.len() {
        let y = fresh_like(b, xs[a], c.latent);
        let (x, out) = (b.full(relations[a]), b.full(y));
        maps.push(b.map(&name("merge", a), x, out, true));
        activations.push(y);
    }
    b.op(Op::Linear(Linear { maps, activation: Activation::Relu }));
    for a in 0..xs.len() {
        let norm = norm_name(a).map(|n| b.norm(&n, merged[a], c.latent));
        let inputs = c.outer_residual.then(|| b.full(xs[a])).into_iter().chain([b.full(activations[a])]).collect();
        b.op(Op::AddNorm(AddNorm { inputs, y: b.full(merged[a]), norm }));
    }
    merged
}

/// Pools each set and concatenates the results.
fn pool_sets(b: &mut ProgramBuilder, c: &ModelConfig, xs: &[Value]) -> Value {
    let names: Vec<_> =
        (0..xs.len()).map(|k| if c.share_pooling { "pool.shared".to_owned() } else { format!("pool.{k}") }).collect();
    let kind = match c.pooling {
        Pooling::Pma => PoolKind::Attention {
            seeds: c.seeds,
            options: RelationOptions { kind: attention(c, true), norm: c.pool_norm, ..relation_options(c) },
        },
        Pooling::Max => PoolKind::Reduce(Reduce::Max),
        Pooling::Mean => PoolKind::Reduce(Reduce::Mean),
        Pooling::Sum => PoolKind::Reduce(Reduce::Sum),
    };
    pool(b, xs, &names, kind)
}

/// PINE: `C sigmoid(W [z_1; …; z_K])` with `z_k = Σ_x sigmoid(U_k (A_k x) + V_k)`.
fn pine(b: &mut ProgramBuilder, c: &ModelConfig, inputs: &[Value]) -> Value {
    let (p, j) = (c.projections, c.projection_size);
    let width = p * j;
    let z = b.fresh(Space::PerExample(1), c.sets * width, false);
    let mut maps = Vec::new();
    let mut sums = Vec::new();
    for (k, &x) in inputs.iter().enumerate() {
        let projected = fresh_like(b, x, p);
        let bound = 1.0 / (b.spec(x).cols as f64).sqrt();
        let (x, out) = (b.full(x), b.full(projected));
        maps.push(b.map(&format!("pine.{k}.direction"), x, out, false));
        sums.push(PineSum {
            x: projected,
            spread: b.param(&format!("pine.{k}.spread"), &[p, j], Init::Uniform(1.0 / (j as f64).sqrt())),
            shift: b.param(&format!("pine.{k}.shift"), &[width], Init::Uniform(bound)),
            y: Slice { value: z, col: k * width, cols: width },
        });
    }
    b.op(Op::Linear(Linear { maps, activation: Activation::None }));
    for sum in sums {
        b.op(Op::PineSum(sum));
    }
    let h = b.fresh(Space::PerExample(1), c.hidden, false);
    let (x, out) = (b.full(z), b.full(h));
    let map = b.map("pine.hidden", x, out, false);
    b.op(Op::Linear(Linear { maps: vec![map], activation: Activation::Sigmoid }));
    decoder(b, &[h], c.hidden, 0, c.output_width)[0]
}

/// An upper bound on the number of parameters. It cannot overflow: sizes are at most 2¹⁶.
pub(super) fn parameter_bound(c: &ModelConfig) -> u128 {
    let n = |x: usize| x as u128;
    let max_width = c.images.map_or(c.input_widths.iter().max().copied().unwrap_or(1), |i| i.features);
    let images = c.images.map_or(0, |i| i.parameters());
    if c.encoder == Encoder::Pine {
        let features = n(c.projections) * n(c.projection_size);
        return images
            + n(c.sets) * (n(c.projections) * n(max_width) + 2 * features)
            + n(c.hidden) * (n(c.sets) * features)
            + n(c.output_width) * (n(c.hidden) + 1);
    }
    let (latent, hidden) = (n(c.latent), n(c.hidden));
    let relations = match (c.sharing, c.relations) {
        (Sharing::Sym, _) => 2,
        (_, Relations::SelfOnly) => n(c.sets),
        (_, Relations::Union) => 1,
        (Sharing::Cross, _) => n(c.sets) + 1,
        _ => n(c.sets) * n(c.sets),
    };
    let attention = 4 * latent * latent + 2 * latent * hidden + 12 * (latent + hidden);
    let relation = match c.encoder {
        Encoder::RelationNetwork => 5 * latent * hidden + 12 * (latent + hidden),
        Encoder::FeedForward => 2 * latent * hidden + n(c.feed_forward_layers) * hidden * (hidden + 1) + 4 * latent,
        _ => attention,
    };
    let merge = n(c.sets) * (n(c.sets) * latent * latent + 4 * latent);
    let pooling = n(c.sets) * (attention + n(c.seeds) * latent);
    let decoder = n(c.sets) * n(c.seeds) * latent * (hidden + n(c.output_width))
        + n(c.decoder_layers) * hidden * (hidden + 1)
        + (hidden + 1) * n(c.output_width);
    images + n(c.sets) * (n(max_width) + 2) * latent + n(c.blocks) * (relations * relation + merge) + pooling + decoder
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{ImageEncoder, Images, PRESETS};

    #[test]
    fn the_parameter_bound_is_above_the_exact_count_by_less_than_a_factor_of_five() {
        for preset in PRESETS {
            let config = ModelConfig::preset(preset.name, 4).unwrap().validate().unwrap();
            let exact = program(&config, Mode::Infer, false).params().len() as u128;
            let bound = parameter_bound(&config);
            assert!(exact <= bound && bound < 5 * exact, "{}: {exact} parameters, bound {bound}", preset.name);
            if !config.dimension_equivariant {
                let images = Images::new(ImageEncoder::Mnist);
                let config = ModelConfig::clone(&config).with_images(images).validate().unwrap();
                let exact = program(&config, Mode::Infer, false).params().len() as u128;
                let bound = parameter_bound(&config);
                assert!(exact <= bound && bound < 5 * exact, "{}: {exact} parameters, bound {bound}", preset.name);
            }
        }
    }
}
