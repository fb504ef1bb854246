//! Pooling: from the elements of a set to one vector per example.

use setwise_engine::{Concat, Init, Op, Pool, ProgramBuilder, Reduce, Repeat, Segments, Slice, Space, Value};

use super::relate::{Relation, RelationOptions, relate};

/// The kind of pooling.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PoolKind {
    /// Learned seeds attend to the set (PMA; Lee et al., 2019).
    Attention {
        /// Number of seeds.
        seeds: usize,
        /// Options of the transformer block.
        options: RelationOptions,
    },
    /// A maximum, mean or sum of each column.
    Reduce(Reduce),
}

/// Pools each value and concatenates the results. `names[i]` names the weights of value `i`; equal names share them.
///
/// # Shapes
/// `[rows, latent]` each to `[examples, values · seeds · latent]`; reductions have one seed.
pub(crate) fn pool(b: &mut ProgramBuilder, xs: &[Value], names: &[String], kind: PoolKind) -> Value {
    let latent = b.spec(xs[0]).cols;
    match kind {
        PoolKind::Reduce(reduce) => {
            let y = b.fresh(Space::PerExample(1), xs.len() * latent, false);
            for (i, &x) in xs.iter().enumerate() {
                let slice = Slice { value: y, col: i * latent, cols: latent };
                b.op(Op::Pool(Pool { x, y: slice, reduce, segments: Segments::Examples }));
            }
            y
        }
        PoolKind::Attention { seeds, options } => {
            // Xavier initialisation of a [1, seeds, latent] tensor, as in the published code.
            let bound = (6.0 / ((seeds + 1) as f64 * latent as f64)).sqrt();
            let mut relations = Vec::new();
            let mut pooled = Vec::new();
            for (&x, name) in xs.iter().zip(names) {
                let param = b.param(&format!("{name}.seeds"), &[seeds, latent], Init::Uniform(bound));
                let query = b.fresh(Space::PerExample(seeds), latent, false);
                b.op(Op::Repeat(Repeat { param, y: query }));
                let out = b.fresh(Space::PerExample(seeds), latent, false);
                relations.push(Relation { name: name.clone(), query, key: x, out: b.full(out) });
                pooled.push(out);
            }
            relate(b, &relations, options);
            let y = b.fresh(Space::PerExample(1), xs.len() * seeds * latent, false);
            b.op(Op::Concat(Concat { inputs: pooled, y }));
            y
        }
    }
}

/// Maximum over input dimensions: from one row per element and dimension to one row per element.
pub(crate) fn max_over_dimensions(b: &mut ProgramBuilder, x: Value) -> Value {
    let spec = b.spec(x);
    let y = b.fresh(spec.space, spec.cols, false);
    let out = b.full(y);
    b.op(Op::Pool(Pool { x, y: out, reduce: Reduce::Max, segments: Segments::Dimensions }));
    y
}
