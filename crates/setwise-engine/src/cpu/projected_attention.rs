//! Attention fused with the projections of its queries, keys and values: one relation of one example at a time, or of
//! a few small examples.
//!
//! Unfused, the projections of all sets are written to the arena, and attention reads them with a row stride. The
//! backward pass reads them twice more. Fused, the projections of one relation are contiguous rows that are used while
//! they are in cache. The backward pass recomputes them (rematerialisation), which costs a fraction of reading them.

use std::ops::Range;

use super::packed_weights::PackedWeights;
use super::row_buffers::slot_len;
use super::worker::{Run, Worker};
use crate::flow::Users;
use crate::program::{Activation, Attention, Linear, Map, Op, Program, Slice, Value};
use crate::real::Real;

/// Rows up to which examples are projected together, to pay for reading the weights.
const ROWS: usize = 128;

/// One projection of a relation.
struct Projection {
    map: usize,
    /// Whether it is the first, or the last, of the projections of one input to add to the input's gradient.
    first: bool,
    last: bool,
}

/// Projections, and the attention that follows and is their only reader.
pub struct ProjectedAttention {
    /// The linear operation; attention is the next one.
    pub op: usize,
    /// For each relation the projections of queries, keys and values.
    relations: Vec<[Projection; 3]>,
}

impl ProjectedAttention {
    /// Fuses operation `op` with the next one, if `op` is such projections.
    pub fn find(program: &Program, users: &Users, op: usize) -> Option<Self> {
        let (Op::Linear(l), Op::Attention(a)) = (&program.ops[op], program.ops.get(op + 1)?) else { return None };
        let plain = l.activation == Activation::None
            && l.maps.len() == 3 * a.relations.len()
            && l.maps.iter().all(|m| m.residual.is_none() && m.norm.is_none());
        let mut values = l.maps.iter().map(|m| m.y.value);
        let only_reader = |v: Value| users.of_value(v) == [op, op + 1] && !program.outputs.contains(&v);
        if !plain || !values.all(only_reader) {
            return None;
        }
        let map_of = |s: Slice| l.maps.iter().position(|m| m.y == s);
        let mut relations = Vec::new();
        for r in &a.relations {
            let maps = [map_of(r.query)?, map_of(r.key)?, map_of(r.value)?];
            relations.push(maps.map(|map| Projection { map, first: false, last: false }));
        }
        let (mut first_uses, mut last_uses) = (Vec::new(), Vec::new());
        for p in relations.iter_mut().flatten() {
            p.first = is_new(&mut first_uses, l.maps[p.map].x);
        }
        for p in relations.iter_mut().flatten().rev() {
            p.last = is_new(&mut last_uses, l.maps[p.map].x);
        }
        Some(ProjectedAttention { op, relations })
    }

    /// The values between projections and attention.
    pub fn internal<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = Value> + 'a {
        self.operations(program).0.maps.iter().map(|m| m.y.value)
    }

    fn operations<'a>(&self, program: &'a Program) -> (&'a Linear, &'a Attention) {
        match (&program.ops[self.op], &program.ops[self.op + 1]) {
            (Op::Linear(l), Op::Attention(a)) => (l, a),
            _ => unreachable!("these operations were found"),
        }
    }
}

/// Whether a slice is seen for the first time.
fn is_new(seen: &mut Vec<Slice>, s: Slice) -> bool {
    let new = !seen.contains(&s);
    if new {
        seen.push(s);
    }
    new
}

impl<T: Real> Worker<T> {
    /// Elements of the row buffers that projections take at once.
    pub(super) fn projected_workspace(&self, projected: &ProjectedAttention, program: &Program) -> usize {
        let (l, _) = projected.operations(program);
        let workspace = |p: &Projection| {
            let y = l.maps[p.map].y;
            let max_rows = (0..self.shape.examples).map(|e| self.example_rows(y.value, &(e..e + 1)).len()).max();
            slot_len(max_rows.unwrap_or(0).max(ROWS), y.cols).saturating_mul(if program.training() { 2 } else { 1 })
        };
        projected.relations.iter().map(|r| r.iter().map(workspace).sum()).max().unwrap_or(0)
    }

    /// The examples from `first` on to project together: one, or several with few rows.
    fn together(&self, l: &Linear, first: usize) -> Range<usize> {
        let few = |last: usize| l.maps.iter().all(|m| self.example_rows(m.y.value, &(first..last)).len() <= ROWS);
        let mut last = first + 1;
        while last < self.shape.examples && few(last + 1) {
            last += 1;
        }
        first..last
    }

    /// Projects queries, keys and values of one relation and some examples into row buffers.
    fn project(
        &mut self,
        params: &[T],
        packed: &PackedWeights<T>,
        l: &Linear,
        projections: &[Projection; 3],
        examples: &Range<usize>,
    ) {
        let grad = self.program.training();
        self.row_buffers.clear();
        let maps = projections.each_ref().map(|p| &l.maps[p.map]);
        let rows = maps.map(|map| self.example_rows(map.y.value, examples));
        for (map, rows) in maps.iter().zip(&rows) {
            self.row_buffers.add(map.y, rows.start, rows.len(), grad);
        }
        let product = |i: usize| self.map_product(params, packed, maps[i], Activation::None, rows[i].clone());
        let products = [0, 1, 2].map(product);
        // Products with one input run together: AMX then splits its rows once.
        let same_product = |a: &&Map, b: &&Map| {
            a.x == b.x && a.y.cols == b.y.cols && packed.on_amx(a.weight) == packed.on_amx(b.weight)
        };
        let mut first = 0;
        for together in maps.chunk_by(same_product) {
            let products = &products[first..first + together.len()];
            first += together.len();
            // SAFETY: `row_buffers.add` above gave every map's output a slot for these rows, and each product writes
            // its own. The products of `together` read the same rows of one input; this worker runs alone.
            unsafe { self.products(packed, together[0].weight, products) };
        }
    }

    /// Projects every relation of some examples at a time, and calls `f` with the projections.
    fn each_relation(
        &mut self,
        params: &[T],
        packed: &PackedWeights<T>,
        projected: &ProjectedAttention,
        direction: usize,
        mut f: impl FnMut(&mut Self, usize, &[Projection; 3], &Range<usize>),
    ) {
        let program = self.program.clone();
        let (l, _) = projected.operations(&program);
        let mut examples = 0..0;
        while examples.end < self.shape.examples {
            examples = self.together(l, examples.end);
            for (r, projections) in projected.relations.iter().enumerate() {
                let started = self.clock();
                self.project(params, packed, l, projections, &examples);
                self.record(projected.op, direction, started);
                f(self, r, projections, &examples);
            }
        }
        self.row_buffers.clear();
    }

    pub(super) fn projected_forward(
        &mut self,
        params: &[T],
        packed: &PackedWeights<T>,
        projected: &ProjectedAttention,
    ) {
        let program = self.program.clone();
        let (_, a) = projected.operations(&program);
        self.each_relation(params, packed, projected, 0, |this, r, _, examples| {
            let started = this.clock();
            // SAFETY: only workers with one thread fuse operations, so this runs alone, one relation and example after
            // another. `project` has filled the row buffers that the relation reads.
            examples.clone().for_each(|e| unsafe { this.relation_forward(packed.uses_amx(), a, r, e) });
            this.record(projected.op + 1, 0, started);
        });
    }

    pub(super) fn projected_backward(&mut self, run: &mut Run<T>, projected: &ProjectedAttention) {
        let program = self.program.clone();
        let (l, a) = projected.operations(&program);
        self.each_relation(run.params, run.packed, projected, 1, |this, r, projections, examples| {
            let started = this.clock();
            // SAFETY: as for the forward pass.
            examples.clone().for_each(|e| unsafe { this.relation_backward(run.packed.uses_amx(), a, r, e) });
            this.record(projected.op + 1, 1, started);
            let started = this.clock();
            for p in projections {
                let map = &l.maps[p.map];
                let rows = this.example_rows(map.x.value, examples);
                if this.wants_grad(map.x.value) {
                    let accumulate = !p.first || this.grad_written(map.x.value);
                    // SAFETY: `x` has the rows of these examples, and this worker runs alone.
                    unsafe { this.input_backward(run.packed, map, rows.clone(), accumulate, p.last) };
                }
                this.map_weight_backward(run, map, rows);
            }
            this.record(projected.op, 1, started);
        });
        for map in &l.maps {
            self.mark_written(map.x.value);
        }
    }
}
