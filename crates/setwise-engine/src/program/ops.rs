//! The operations: what each reads, writes and saves.

use super::{BatchNorm, Convolution, MaxPool, Slice, Value};
use crate::params::ParamId;

/// The activation of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Identity.
    None,
    /// max(0, x).
    Relu,
    /// 1 / (1 + exp(−x)).
    Sigmoid,
}

/// `y = x Wᵀ + b`, optionally followed by a residual and LayerNorm.
#[derive(Clone, Debug)]
pub struct Map {
    /// Input columns.
    pub x: Slice,
    /// Weight `[y.cols, x.cols]`.
    pub weight: ParamId,
    /// Bias `[y.cols]`.
    pub bias: Option<ParamId>,
    /// Output columns.
    pub y: Slice,
    /// Added to the product (not allowed together with an activation).
    pub residual: Option<Slice>,
    /// Applied last.
    pub norm: Option<Norm>,
}

/// LayerNorm: `y = γ · (x − mean) / sqrt(var + 1e-5) + β` over the columns of a row.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// γ.
    pub gain: ParamId,
    /// β.
    pub shift: ParamId,
    /// Saved for the backward pass: the normalised rows before γ and β.
    pub normalised: Value,
    /// Saved: 1 / sqrt(var + ε).
    pub inv_std: Value,
}

/// Several independent linear maps. Maps with the same input read it once; maps with the same weight share it.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The maps.
    pub maps: Vec<Map>,
    /// Applied to every product.
    pub activation: Activation,
}

/// One relation of an attention: queries of one space attend to keys and values of another, example by example.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Queries; their columns are divided among the heads.
    pub query: Slice,
    /// Keys, of the queries' width.
    pub key: Slice,
    /// Values, of the queries' width.
    pub value: Slice,
    /// Output, in the rows of the queries.
    pub out: Slice,
    /// Saved for the backward pass: two numbers for every query and head. On the CPU they are the maximum score and
    /// one over the sum of exponentials.
    pub stats: Value,
}

/// Scaled dot-product attention of all relations at once.
#[derive(Clone, Debug)]
pub struct Attention {
    /// The relations. A slice of queries, keys or values belongs to one relation only.
    pub relations: Vec<Relation>,
    /// Number of heads.
    pub heads: usize,
    /// Factor of the scores before the softmax.
    pub scale: f64,
}

/// `y = LayerNorm(Σ inputs)`; the norm is optional.
#[derive(Clone, Debug)]
pub struct AddNorm {
    /// The terms, all of the output's shape.
    pub inputs: Vec<Slice>,
    /// The sum.
    pub y: Slice,
    /// Applied last.
    pub norm: Option<Norm>,
}

/// How rows are reduced to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Maximum of each column.
    Max,
    /// Average.
    Mean,
    /// Sum.
    Sum,
}

/// Which rows are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// All rows of an example.
    Examples,
    /// The rows of one element, one for each input dimension.
    Dimensions,
}

/// Reduces rows to one per segment.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Input.
    pub x: Value,
    /// Output.
    pub y: Slice,
    /// The reduction.
    pub reduce: Reduce,
    /// The rows that are reduced together.
    pub segments: Segments,
}

/// A network on pairs, reduced over the partners: `y_i = reduce_j (relu(u_i + v_j) Wᵀ + b)`.
///
/// The N × M × hidden tensor is never stored: a sum passes the second layer once, a maximum is computed tile by tile.
#[derive(Clone, Debug)]
pub struct Pair {
    /// `u`: the first layer on the element itself, bias included.
    pub left: Slice,
    /// `v`: the first layer on the partner.
    pub right: Slice,
    /// Second layer, `[y.cols, left.cols]`.
    pub weight: ParamId,
    /// Second layer's bias.
    pub bias: ParamId,
    /// Output, in the rows of `left`.
    pub y: Slice,
    /// Sum or max.
    pub reduce: Reduce,
    /// Saved for the backward pass: the summed hidden layer (sum), or the argmax over partners (max).
    pub saved: Value,
}

/// Several independent pair networks: a slice of `u` or `v` belongs to one network only.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// The networks.
    pub nets: Vec<Pair>,
}

/// Copies the rows of all sets into the union, and adds the encoding of each set where there is one.
#[derive(Clone, Debug)]
pub struct ToUnion {
    /// One value per set.
    pub sets: Vec<Value>,
    /// One vector per set, or none.
    pub encodings: Vec<ParamId>,
    /// In the union.
    pub y: Value,
}

/// Copies the rows of the sets out of the union.
#[derive(Clone, Debug)]
pub struct FromUnion {
    /// In the union.
    pub x: Value,
    /// One value per set.
    pub sets: Vec<Value>,
}

/// Copies a parameter `[rows, cols]` to every example.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// The parameter.
    pub param: ParamId,
    /// In a space of `rows` per example.
    pub y: Value,
}

/// Concatenates the rows of each example in several values to one row:
/// `y = [all rows of the first, all rows of the second, …]`.
#[derive(Clone, Debug)]
pub struct Concat {
    /// In spaces with a fixed number of rows per example.
    pub inputs: Vec<Value>,
    /// One row per example.
    pub y: Value,
}

/// PINE's element network, summed over a set: `y[p, j] = Σ_i sigmoid(x_i[p] · U[p, j] + V[p, j])`.
#[derive(Clone, Debug)]
pub struct PineSum {
    /// Projections `[rows, P]`.
    pub x: Value,
    /// `[P, J, 1]`.
    pub spread: ParamId,
    /// `[P · J]`.
    pub shift: ParamId,
    /// `[examples, P · J]`.
    pub y: Slice,
}

/// Sets elements to zero with probability `rate` and scales the others up; only in training programs.
#[derive(Clone, Debug)]
pub struct Dropout {
    /// Input.
    pub x: Slice,
    /// Output, of the same shape.
    pub y: Slice,
    /// Probability of zero.
    pub rate: f64,
    /// Distinguishes the masks of a program's dropouts.
    pub stream: u64,
}

/// One step of a program.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Linear(Linear),
    Attention(Attention),
    AddNorm(AddNorm),
    Pool(Pool),
    Pairs(Pairs),
    ToUnion(ToUnion),
    FromUnion(FromUnion),
    Repeat(Repeat),
    Concat(Concat),
    PineSum(PineSum),
    Dropout(Dropout),
    Convolution(Convolution),
    BatchNorm(BatchNorm),
    MaxPool(MaxPool),
}

/// The values an operation uses, for planning memory and gradients.
#[derive(Default)]
pub(crate) struct Uses {
    /// Values read, to which a gradient may flow.
    pub reads: Vec<Value>,
    /// Values written (perhaps in part).
    pub writes: Vec<Value>,
    /// Values the backward pass reads.
    pub saved: Vec<Value>,
}

impl Op {
    /// The kind of the operation, with the widths of linear maps.
    pub fn describe(&self) -> String {
        match self {
            Op::Linear(l) => {
                let m = &l.maps[0];
                let norm = if m.norm.is_some() { ", norm" } else { "" };
                let residual = if m.residual.is_some() { ", residual" } else { "" };
                let activation = match l.activation {
                    Activation::None => "",
                    Activation::Relu => ", ReLU",
                    Activation::Sigmoid => ", sigmoid",
                };
                format!("{} linear {} to {}{activation}{residual}{norm}", l.maps.len(), m.x.cols, m.y.cols)
            }
            Op::Attention(a) => format!("attention, {} relations", a.relations.len()),
            Op::AddNorm(a) => format!("sum of {}{}", a.inputs.len(), if a.norm.is_some() { ", norm" } else { "" }),
            Op::Pool(p) => format!("pooling, {:?}", p.reduce).to_lowercase(),
            Op::Pairs(p) => format!("pair network, {:?}, {} relations", p.nets[0].reduce, p.nets.len()).to_lowercase(),
            Op::ToUnion(_) => "to union".to_owned(),
            Op::FromUnion(_) => "from union".to_owned(),
            Op::Repeat(_) => "repeat".to_owned(),
            Op::Concat(_) => "concatenation".to_owned(),
            Op::PineSum(_) => "sum of sigmoids".to_owned(),
            Op::Dropout(_) => "dropout".to_owned(),
            Op::Convolution(c) => {
                let (from, to) = (c.from.channels, c.to.channels);
                format!("convolution {0}×{0}, {from} to {to} channels", c.window.kernel)
            }
            Op::BatchNorm(b) => format!("batch norm, {} channels", b.channels),
            Op::MaxPool(_) => "max pooling of pixels".to_owned(),
        }
    }

    pub(crate) fn uses(&self) -> Uses {
        let mut u = Uses::default();
        let keep_norm = |u: &mut Uses, norm: &Option<Norm>| {
            if let Some(n) = norm {
                u.writes.extend([n.normalised, n.inv_std]);
                u.saved.extend([n.normalised, n.inv_std]);
            }
        };
        match self {
            Op::Linear(l) => {
                for m in &l.maps {
                    u.reads.push(m.x.value);
                    u.saved.push(m.x.value);
                    u.writes.push(m.y.value);
                    if l.activation != Activation::None {
                        u.saved.push(m.y.value);
                    }
                    u.reads.extend(m.residual.map(|r| r.value));
                    keep_norm(&mut u, &m.norm);
                }
            }
            Op::Attention(a) => {
                for r in &a.relations {
                    u.reads.extend([r.query.value, r.key.value, r.value.value]);
                    u.writes.extend([r.out.value, r.stats]);
                    u.saved.extend([r.query.value, r.key.value, r.value.value, r.out.value, r.stats]);
                }
            }
            Op::AddNorm(a) => {
                u.reads.extend(a.inputs.iter().map(|s| s.value));
                u.writes.push(a.y.value);
                keep_norm(&mut u, &a.norm);
            }
            Op::Pool(p) => {
                u.reads.push(p.x);
                u.writes.push(p.y.value);
                match p.reduce {
                    Reduce::Max => u.saved.extend([p.x, p.y.value]),
                    Reduce::Mean | Reduce::Sum => {}
                }
            }
            Op::Pairs(p) => {
                for n in &p.nets {
                    u.reads.extend([n.left.value, n.right.value]);
                    u.writes.extend([n.y.value, n.saved]);
                    u.saved.extend([n.left.value, n.right.value, n.saved]);
                }
            }
            Op::ToUnion(t) => {
                u.reads.extend(&t.sets);
                u.writes.push(t.y);
            }
            Op::FromUnion(f) => {
                u.reads.push(f.x);
                u.writes.extend(&f.sets);
            }
            Op::Repeat(r) => u.writes.push(r.y),
            Op::Concat(c) => {
                u.reads.extend(&c.inputs);
                u.writes.push(c.y);
            }
            Op::PineSum(p) => {
                u.reads.push(p.x);
                u.writes.push(p.y.value);
                u.saved.push(p.x);
            }
            Op::Dropout(d) => {
                u.reads.push(d.x.value);
                u.writes.push(d.y.value);
            }
            Op::Convolution(c) => {
                u.reads.extend(&c.xs);
                u.writes.extend(&c.ys);
                u.saved.extend(&c.xs);
            }
            Op::BatchNorm(b) => {
                u.reads.extend(&b.xs);
                u.writes.extend(b.ys.iter().chain([&b.stats]));
                u.saved.extend(b.xs.iter().chain([&b.stats]));
            }
            Op::MaxPool(p) => {
                u.reads.extend(&p.xs);
                u.writes.extend(p.ys.iter().chain(&p.argmax));
                u.saved.extend(&p.argmax);
            }
        }
        u
    }
}
