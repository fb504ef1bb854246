//! Linear maps: products of rows, gradients of inputs with transposed weights, gradients of weights in parts.

use super::super::tables::{self as t, Address};
use super::Builder;
use crate::error::Error;
use crate::flow::group_by;
use crate::params::ParamId;
use crate::program::{Activation, Linear, Op, Slice};

/// One use of a weight.
pub(super) struct Use {
    pub weight: ParamId,
    pub bias: Option<ParamId>,
    pub x: Slice,
    pub dy: Slice,
}

/// A product of one term and nothing else.
pub(super) fn no_product(space: t::Space) -> t::ProductTask {
    t::ProductTask {
        terms: 0,
        y: 0,
        bias: 0,
        residual: 0,
        gate: 0,
        count: 1,
        ldy: 0,
        ldr: 0,
        ldg: 0,
        n: 0,
        activation: 0,
        accumulate: 0,
        pairs: 0,
        space,
        pad2: 0,
    }
}

fn activation(a: Activation) -> i32 {
    match a {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Sigmoid => 2,
    }
}

/// Parts a weight's gradient is summed from are spread over about this many blocks.
pub(super) const WEIGHT_BLOCKS: usize = 264;

impl<'a> Builder<'a> {
    pub(super) fn linear_forward(&mut self, op: &Linear) -> Result<(), Error> {
        let mut tasks = Vec::new();
        for m in &op.maps {
            let ((x, ldx), (y, ldy)) = (self.slice(m.x), self.slice(m.y));
            let (residual, ldr) = m.residual.map_or((0, 0), |r| self.slice(r));
            let k = m.x.cols as i32;
            let vec_b = i32::from(m.x.cols.is_multiple_of(4) && self.aligned_param(m.weight));
            let term = t::Term {
                a: x,
                b: self.param(m.weight),
                lda: ldx,
                ldb: k,
                k,
                vec_a: i32::from(self.aligned(m.x)),
                vec_b,
                pad: 0,
            };
            let terms = self.tables.push(&[term]);
            tasks.push(t::ProductTask {
                terms,
                y,
                bias: m.bias.map_or(0, |b| self.param(b)),
                residual,
                ldr,
                ldy,
                n: m.y.cols as i32,
                activation: activation(op.activation),
                ..no_product(self.space(m.x.value))
            });
        }
        let rows = op.maps.iter().map(|m| self.rows(m.x.value)).max().unwrap_or(0);
        self.product(&tasks, rows)?;
        let norms: Vec<t::NormTask> =
            op.maps.iter().filter_map(|m| m.norm.map(|n| self.norm_task(&[m.y], m.y, Some(n)))).collect();
        self.norms(&norms, rows)
    }

    /// Tiled products in the shape that suits their width.
    pub(super) fn product(&mut self, tasks: &[t::ProductTask], rows: usize) -> Result<(), Error> {
        let widest = tasks.iter().map(|t| t.n as usize).max().unwrap_or(0);
        let (name, bm, bn, block, stages) = match widest {
            128.. if self.module.fits(3 * 256 * 36 * 4) => ("product_large", 128, 128, 256, 3),
            64.. => ("product_medium", 128, 64, 256, 3),
            _ => ("product_small", 64, 32, 128, 2),
        };
        let grid = [rows.div_ceil(bm), widest.div_ceil(bn), tasks.len()];
        let even = |t: &t::ProductTask| t.y.is_multiple_of(8) && t.ldy % 2 == 0 && t.n % 2 == 0;
        let tasks: Vec<_> = tasks.iter().map(|t| t::ProductTask { pairs: i32::from(even(t)), ..*t }).collect();
        self.launch(name, &tasks, grid, block, stages * (bm + bn) * 36 * 4)
    }

    pub(super) fn linear_backward(&mut self, op: &Linear, gated: &[bool]) -> Result<(), Error> {
        let norms: Vec<_> = op.maps.iter().filter_map(|m| m.norm.map(|n| (m.y, n))).collect();
        self.norms_backward(&norms)?;
        if op.activation != Activation::None && !op.maps.iter().all(|m| gated[m.y.value.0]) {
            let tasks: Vec<t::ActivationTask> = op
                .maps
                .iter()
                .map(|m| {
                    let ((y, ld), (dy, _)) = (self.slice(m.y), self.grad_slice(m.y));
                    let (cols, activation, space) = (m.y.cols as i32, activation(op.activation), self.space(m.y.value));
                    t::ActivationTask { y, dy, ld, cols, activation, pad: 0, space, pad2: 0 }
                })
                .collect();
            let most = op.maps.iter().map(|m| self.rows(m.y.value) * m.y.cols).max().unwrap_or(0);
            self.walk("activation_backward", &tasks, most)?;
        }
        self.add_gradients(op.maps.iter().filter_map(|m| m.residual.map(|r| (r, m.y))).collect())?;
        self.linear_inputs(op, gated)?;
        let uses: Vec<Use> = op.maps.iter().map(|m| Use { weight: m.weight, bias: m.bias, x: m.x, dy: m.y }).collect();
        self.linear_weights(&uses)
    }

    pub(super) fn linear_inputs(&mut self, op: &Linear, gated: &[bool]) -> Result<(), Error> {
        let groups = group_by(op.maps.iter().map(|m| m.x));
        let mut tasks = Vec::new();
        let mut rows = 0;
        for (x, maps) in &groups {
            if !self.wants_grad(x.value) {
                continue;
            }
            let terms: Vec<t::Term> =
                maps.iter().map(|&m| self.gradient_term(op.maps[m].y, op.maps[m].weight)).collect();
            let terms_at = self.tables.push(&terms);
            let (y, ldy) = self.grad_slice(*x);
            let (gate, ldg) = if gated[x.value.0] { self.slice(*x) } else { (0, 0) };
            tasks.push(t::ProductTask {
                terms: terms_at,
                y,
                gate,
                ldg,
                count: terms.len() as i32,
                ldy,
                n: x.cols as i32,
                accumulate: i32::from(self.written[x.value.0]),
                ..no_product(self.space(x.value))
            });
            rows = rows.max(self.rows(x.value));
        }
        self.product(&tasks, rows)?;
        for (x, _) in &groups {
            self.written[x.value.0] = true;
        }
        Ok(())
    }

    /// dy W as a product of rows, with the transposed weight.
    pub(super) fn gradient_term(&self, dy: Slice, weight: ParamId) -> t::Term {
        let (a, lda) = self.grad_slice(dy);
        let spec = self.program.params.spec(weight);
        let k = dy.cols as i32;
        let vec_b = i32::from(dy.cols.is_multiple_of(4) && spec.offset.is_multiple_of(4));
        t::Term {
            a,
            b: self.places.transposed + 4 * spec.offset as u64,
            lda,
            ldb: k,
            k,
            vec_a: i32::from(self.aligned(dy)),
            vec_b,
            pad: 0,
        }
    }

    /// Transposes all weights that gradients of inputs go through.
    pub(super) fn transpose_weights(&mut self) -> Result<(), Error> {
        let mut weights: Vec<ParamId> = Vec::new();
        for op in &self.program.ops {
            match op {
                Op::Linear(l) => weights.extend(l.maps.iter().filter(|m| self.wants_grad(m.x.value)).map(|m| m.weight)),
                Op::Pairs(p) => weights.extend(p.nets.iter().map(|n| n.weight)),
                _ => {}
            }
        }
        weights.sort_unstable();
        weights.dedup();
        let mut most = 0;
        let tasks: Vec<t::TransposeTask> = weights
            .iter()
            .map(|&w| {
                let spec = self.program.params.spec(w);
                let (rows, cols) = (spec.shape[0], spec.shape[1]);
                most = most.max(rows.div_ceil(32) * cols.div_ceil(32));
                let to = self.places.transposed + 4 * spec.offset as u64;
                t::TransposeTask { from: self.param(w), to, rows: rows as i32, cols: cols as i32 }
            })
            .collect();
        self.launch("transpose", &tasks, [most, tasks.len(), 1], 256, 0)
    }

    /// Gradients of weights and biases.
    pub(super) fn linear_weights(&mut self, uses: &[Use]) -> Result<(), Error> {
        let groups = group_by(uses.iter().map(|u| u.weight));
        let narrowest = uses.iter().map(|u| u.dy.cols.min(u.x.cols)).min().unwrap_or(0);
        let (name, tile, block) = match narrowest {
            128.. if self.module.fits(3 * 32 * 272 * 4) => ("linear_weights_large", 128, 128),
            64.. => ("linear_weights_medium", 64, 128),
            _ => ("linear_weights_small", 32, 64),
        };
        let (bm, bn) = (tile, tile);
        let tiles = |u: &Use| u.dy.cols.div_ceil(bm) * u.x.cols.div_ceil(bn);
        let all: usize = uses.iter().map(tiles).sum();
        let longest = uses.iter().map(|u| self.rows(u.dy.value)).max().unwrap_or(0);
        let splits = (WEIGHT_BLOCKS / all.max(1)).clamp(1, longest.div_ceil(128).max(1));
        let (mut tasks, mut sums) = (Vec::new(), Vec::new());
        for (weight, members) in &groups {
            let u = &uses[members[0]];
            let (n, k) = (u.dy.cols, u.x.cols);
            let slot = n * k + n;
            let parts = self.room(members.len() * splits * slot);
            for (i, &m) in members.iter().enumerate() {
                let u = &uses[m];
                let ((x, ldx), (dy, ldy)) = (self.slice(u.x), self.grad_slice(u.dy));
                tasks.push(t::WeightTask {
                    dy,
                    x,
                    parts: parts + 4 * (i * splits * slot) as u64,
                    ldy,
                    ldx,
                    n: n as i32,
                    k: k as i32,
                    splits: splits as i32,
                    vec: i32::from(self.aligned(u.x) && self.aligned(u.dy)),
                    space: self.space(u.dy.value),
                    pad: 0,
                });
            }
            let mut sum = |offset: usize, out: Address, len: usize| {
                sums.push(t::SumTask {
                    parts: parts + 4 * offset as u64,
                    out,
                    stride: slot as u64,
                    count: (members.len() * splits) as i32,
                    len: len as i32,
                    rows_per_part: 0,
                    pad: 0,
                    space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                    pad2: 0,
                });
            };
            sum(0, self.places.grads + 4 * self.program.params.spec(*weight).offset as u64, n * k);
            if let Some(bias) = u.bias {
                sum(n * k, self.places.grads + 4 * self.program.params.spec(bias).offset as u64, n);
            }
        }
        let most = uses.iter().map(tiles).max().unwrap_or(0);
        self.launch(name, &tasks, [most, splits, tasks.len()], block, 3 * 32 * (bm + bn + 16) * 4)?;
        self.sums.extend(sums);
        Ok(())
    }
}
