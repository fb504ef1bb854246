//! Networks on pairs.

use super::super::tables as t;
use super::Builder;
use super::linear::{Product, Use, WEIGHT_BLOCKS, no_product};
use crate::error::Error;
use crate::program::{Pairs, Reduce, Slice};

impl<'a> Builder<'a> {
    pub(super) fn pair_tasks(&mut self, op: &Pairs, backward: bool) -> Vec<t::PairTask> {
        op.nets
            .iter()
            .map(|n| {
                let ((own, ld_own), (partner, ld_partner), (y, ldy)) =
                    (self.slice(n.own), self.slice(n.partner), self.slice(n.y));
                let grad = |s: Slice| if backward { self.grad_slice(s).0 } else { 0 };
                t::PairTask {
                    own,
                    partner,
                    w: self.param(n.weight),
                    bias: self.param(n.bias),
                    y,
                    kept: self.value(n.kept),
                    dy: grad(n.y),
                    d_own: grad(n.own),
                    d_partner: grad(n.partner),
                    d_kept: 0,
                    parts: 0,
                    ld_own,
                    ld_partner,
                    ldy,
                    hidden: n.own.cols as i32,
                    outputs: n.y.cols as i32,
                    splits: 0,
                    space: self.space(n.own.value),
                    partners: self.space(n.partner.value),
                }
            })
            .collect()
    }

    pub(super) fn pairs_forward(&mut self, op: &Pairs) -> Result<(), Error> {
        let tasks = self.pair_tasks(op, false);
        let net = &op.nets[0];
        let rows = op.nets.iter().map(|n| self.rows(n.own.value)).max().unwrap_or(0);
        if net.reduce == Reduce::Max {
            return self.launch("pair_max", &tasks, [rows, net.y.cols.div_ceil(64), tasks.len()], 128, 0);
        }
        let longest = op.nets.iter().map(|n| self.longest(n.own.value)).max().unwrap_or(0);
        let grid = [longest.div_ceil(8).min(64), self.capacity.examples, tasks.len()];
        self.launch("pair_sums", &tasks, grid, 128, 0)?;
        let mut products = Vec::new();
        for n in &op.nets {
            let (y, ldy) = self.slice(n.y);
            let k = n.own.cols as i32;
            let vec = i32::from(n.own.cols.is_multiple_of(4));
            let vec_b = i32::from(vec == 1 && self.aligned_param(n.weight));
            let term = t::Term {
                a: self.value(n.kept),
                b: self.param(n.weight),
                lda: k,
                ldb: k,
                maps: 0,
                k,
                vec_a: vec,
                vec_b,
                pad: 0,
            };
            let task = t::ProductTask { y, ldy, n: n.y.cols as i32, ..no_product(self.space(n.own.value)) };
            products.push(Product { task, terms: vec![term], rows: self.rows(n.own.value) });
        }
        self.product(&products, rows)?;
        self.walk("pair_bias", &tasks, rows * net.y.cols)
    }

    pub(super) fn pairs_backward(&mut self, op: &Pairs) -> Result<(), Error> {
        let mut tasks = self.pair_tasks(op, true);
        let (examples, net) = (self.capacity.examples, &op.nets[0]);
        let (hidden, outputs) = (net.own.cols, net.y.cols);
        let max = net.reduce == Reduce::Max;
        let rows = op.nets.iter().map(|n| self.rows(n.own.value)).max().unwrap_or(0);
        // Bias: one part per example and net.
        let mut sums = Vec::new();
        for (task, n) in tasks.iter_mut().zip(&op.nets) {
            task.parts = self.room(examples * outputs);
            // Tells sums, whose bias counts once per partner, from maxima.
            task.d_kept = u64::from(!max);
            sums.push(self.example_sum(task.parts, self.param_grad(n.bias), outputs, outputs));
        }
        self.launch("pair_bias_gradient", &tasks, [outputs.div_ceil(128), examples, tasks.len()], 128, 0)?;
        self.sums.extend(sums);
        if max {
            let splits = (WEIGHT_BLOCKS * 4 / (outputs * tasks.len())).clamp(1, 64);
            let mut sums = Vec::new();
            for (task, n) in tasks.iter_mut().zip(&op.nets) {
                task.splits = splits as i32;
                task.parts = self.room(splits * outputs * hidden);
                sums.push(t::SumTask {
                    parts: task.parts,
                    out: self.param_grad(n.weight),
                    stride: (outputs * hidden) as u64,
                    count: splits as i32,
                    len: (outputs * hidden) as i32,
                    rows_per_part: 0,
                    vec: 0,
                    space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                    pad2: 0,
                });
            }
            self.launch("pair_max_weights", &tasks, [outputs, splits, tasks.len()], 128, 0)?;
            self.sums.extend(sums);
            self.launch("pair_max_inputs", &tasks, [hidden.div_ceil(32), examples, tasks.len()], 32, 0)?;
        } else {
            // dh = dy W, then through the sums; dW = dyᵀ h.
            let mut inputs = Vec::new();
            let mut uses = Vec::new();
            for (task, n) in tasks.iter_mut().zip(&op.nets) {
                task.d_kept = self.room(self.rows(n.own.value) * hidden);
                let weight = self.program.params.spec(n.weight).offset;
                let terms = vec![self.gradient_term(n.y, weight)];
                let space = self.space(n.own.value);
                let cols = hidden as i32;
                let task = t::ProductTask { y: task.d_kept, ldy: cols, n: cols, ..no_product(space) };
                inputs.push(Product { task, terms, rows: self.rows(n.own.value) });
                uses.push(Use { weight, bias: None, x: Slice { value: n.kept, col: 0, cols: hidden }, dy: n.y });
            }
            self.product(&inputs, rows)?;
            let longest = op.nets.iter().map(|n| self.longest(n.own.value).max(self.longest(n.partner.value)));
            let grid = [longest.max().unwrap_or(0).div_ceil(8).min(64), examples, tasks.len()];
            self.launch("pair_sums_own", &tasks, grid, 128, 0)?;
            self.launch("pair_sums_partner", &tasks, grid, 128, 0)?;
            self.linear_weights(&uses)?;
        }
        for n in &op.nets {
            self.written[n.own.value.0] = true;
            self.written[n.partner.value.0] = true;
        }
        Ok(())
    }
}
