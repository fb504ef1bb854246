//! The operation list: what a model computes, independent of the backend.
//!
//! A [`Program`] is built once per model. Its values live in *spaces*, which say what a row is: an element of set `k`,
//! an element of the union of all sets, or one of a fixed number of rows per example. A batch decides how many rows a
//! space has, so one program serves batches of any shape, on any backend.

mod images;
mod ops;

pub use images::*;
pub use ops::*;

use crate::batch::BatchView;
use crate::error::Error;
use crate::params::{Init, ParamId, ParamLayout};

/// What the rows of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The elements of set `k`.
    Set(usize),
    /// The elements of all sets of an example, one set after another.
    Union,
    /// This many rows for every example.
    PerExample(usize),
    /// One row for all examples together; no input or output lies there.
    Batch,
}

/// Index of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(crate) usize);

/// Shape of a value: `[rows of the space (× input dimensions), cols]`.
#[derive(Clone, Debug)]
pub struct ValueSpec {
    /// The space of its rows.
    pub space: Space,
    /// Numbers in a row.
    pub cols: usize,
    /// Whether a row is repeated for each input dimension (dimension-equivariant models).
    pub per_dim: bool,
    /// Whether a gradient flows through it.
    pub grad: bool,
}

/// Some columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The value.
    pub value: Value,
    /// First column.
    pub col: usize,
    /// Number of columns.
    pub cols: usize,
}

/// Whether a program is for training (with dropout, and saved values for the backward pass) or for inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forward and backward.
    Train,
    /// Forward only.
    Infer,
}

/// The computation of a model.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) ops: Vec<Op>,
    pub(crate) values: Vec<ValueSpec>,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<Value>,
    pub(crate) params: ParamLayout,
    pub(crate) mode: Mode,
    pub(crate) any_dim: bool,
}

impl Program {
    /// Starts a program on sets of the given row widths.
    ///
    /// With `any_dim` an element has any number of dimensions, the same for all sets, of `widths[k]` numbers each; its
    /// row is repeated for each dimension. `input_grad` requests gradients of the inputs.
    pub fn builder(widths: &[usize], any_dim: bool, mode: Mode, input_grad: bool) -> ProgramBuilder {
        let mut b = ProgramBuilder {
            program: Program {
                ops: Vec::new(),
                values: Vec::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                params: ParamLayout::default(),
                mode,
                any_dim,
            },
        };
        for (k, &width) in widths.iter().enumerate() {
            let v = b.push(ValueSpec { space: Space::Set(k), cols: width, per_dim: any_dim, grad: input_grad });
            b.program.inputs.push(v);
        }
        b
    }

    /// The operations in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Shape of a value.
    pub fn value(&self, v: Value) -> &ValueSpec {
        &self.values[v.0]
    }

    /// One per set.
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// The outputs of the model.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// The parameters.
    pub fn params(&self) -> &ParamLayout {
        &self.params
    }

    /// Whether the program is for training.
    pub fn training(&self) -> bool {
        self.mode == Mode::Train
    }

    /// Whether the results of an example depend on other examples of its batch, as with batch normalisation in
    /// training.
    pub fn couples_examples(&self) -> bool {
        self.mode == Mode::Train && self.ops.iter().any(|op| matches!(op, Op::BatchNorm(_)))
    }

    /// Checks that a batch has the number and widths of sets that this program takes.
    pub fn check<T>(&self, batch: &BatchView<T>) -> Result<(), Error> {
        let expected = self.inputs.len();
        if batch.sets.len() != expected {
            return Err(Error::SetCount { expected, found: batch.sets.len() });
        }
        batch.check()?;
        let cols = |set: usize| self.values[self.inputs[set].0].cols;
        let dims = if self.any_dim { (batch.sets[0].width / cols(0)).max(1) } else { 1 };
        for (set, s) in batch.sets.iter().enumerate() {
            let (expected, found) = (dims * cols(set), s.width);
            if found != expected {
                return Err(match self.any_dim {
                    true => Error::UnequalWidths { set, expected, found },
                    false => Error::SetWidth { set, expected, found },
                });
            }
        }
        Ok(())
    }
}

/// Builds a [`Program`] operation by operation.
pub struct ProgramBuilder {
    program: Program,
}

impl ProgramBuilder {
    fn push(&mut self, spec: ValueSpec) -> Value {
        self.program.values.push(spec);
        Value(self.program.values.len() - 1)
    }

    /// A new value. Operations write it in full or by columns.
    pub fn fresh(&mut self, space: Space, cols: usize, per_dim: bool) -> Value {
        self.push(ValueSpec { space, cols, per_dim, grad: true })
    }

    /// A value saved for the backward pass of one operation.
    pub fn saved(&mut self, space: Space, cols: usize, per_dim: bool) -> Value {
        self.push(ValueSpec { space, cols, per_dim, grad: false })
    }

    /// The input of set `k`.
    pub fn input(&self, k: usize) -> Value {
        self.program.inputs[k]
    }

    /// Shape of a value.
    pub fn spec(&self, v: Value) -> ValueSpec {
        self.program.values[v.0].clone()
    }

    /// All columns of a value.
    pub fn full(&self, v: Value) -> Slice {
        Slice { value: v, col: 0, cols: self.program.values[v.0].cols }
    }

    /// Whether the program is for training.
    pub fn training(&self) -> bool {
        self.program.mode == Mode::Train
    }

    /// A parameter; a repeated name returns the same one.
    pub fn param(&mut self, name: &str, shape: &[usize], init: Init) -> ParamId {
        self.program.params.add(name, shape, init)
    }

    /// A running average, which gradients do not move; a repeated name returns the same one.
    pub fn running(&mut self, name: &str, shape: &[usize], init: Init) -> ParamId {
        self.program.params.add_running(name, shape, init)
    }

    /// A LayerNorm over `cols` columns for rows like those of `like`.
    pub fn norm(&mut self, name: &str, like: Value, cols: usize) -> Norm {
        let ValueSpec { space, per_dim, .. } = self.spec(like);
        Norm {
            gain: self.param(&format!("{name}.gain"), &[cols], Init::Ones),
            shift: self.param(&format!("{name}.shift"), &[cols], Init::Zeros),
            normalised: self.saved(space, cols, per_dim),
            inv_std: self.saved(space, 1, per_dim),
        }
    }

    /// A linear map with PyTorch's default initialisation, uniform within 1/√inputs.
    pub fn map(&mut self, name: &str, x: Slice, y: Slice, bias: bool) -> Map {
        let init = Init::Uniform(1.0 / (x.cols as f64).sqrt());
        Map {
            x,
            weight: self.param(&format!("{name}.weight"), &[y.cols, x.cols], init),
            bias: bias.then(|| self.param(&format!("{name}.bias"), &[y.cols], init)),
            y,
            residual: None,
            norm: None,
        }
    }

    /// Appends an operation.
    ///
    /// # Panics
    /// If an operation on images has an input twice, which is a mistake in the code that builds the model. Its tasks
    /// write the gradients of all inputs in parallel.
    pub fn op(&mut self, op: Op) {
        if let Op::Convolution(Convolution { xs, .. })
        | Op::BatchNorm(BatchNorm { xs, .. })
        | Op::MaxPool(MaxPool { xs, .. }) = &op
        {
            let distinct = xs.iter().enumerate().all(|(i, x)| !xs[..i].contains(x));
            assert!(distinct, "{}: an input occurs twice; pass each value once", op.describe());
        }
        self.program.ops.push(op);
    }

    /// A masked copy of `x` in training programs with a positive rate; otherwise `x` itself.
    pub fn dropout(&mut self, x: Value, rate: f64) -> Value {
        if !self.training() || rate <= 0.0 {
            return x;
        }
        let ValueSpec { space, cols, per_dim, .. } = self.spec(x);
        let y = self.fresh(space, cols, per_dim);
        let stream = self.program.ops.len() as u64;
        self.op(Op::Dropout(Dropout { x: self.full(x), y: self.full(y), rate, stream }));
        y
    }

    /// Sets the outputs and finishes.
    pub fn finish(mut self, outputs: Vec<Value>) -> Program {
        self.program.outputs = outputs;
        self.program
    }
}
