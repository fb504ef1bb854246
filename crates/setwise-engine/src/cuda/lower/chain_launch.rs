//! Chains at work: their weights laid out once for a step, their launches forward and back.

use super::super::tables as t;
use super::Builder;
use super::chain::{Lane, Step};
use super::chain_source::{CHAIN_ROWS, CHAIN_THREADS, Layout, Place, Source, WARP_ROWS};
use super::linear::Use;
use crate::error::Error;
use crate::flow::group_by;
use crate::program::Value;

/// Blocks of a chain that a processor holds at once, at most.
const MOST_BLOCKS: usize = 2;
/// Bytes of shared memory that a block takes besides its own.
const RESERVED: usize = 1024;

impl Builder<'_> {
    /// The chain that begins with an operation.
    pub(super) fn chain_at(&self, op: usize) -> Option<usize> {
        self.chains.iter().position(|c| c.ops.start == op)
    }

    /// Lays the weights of all chains out as their kernels want them, before everything else.
    pub(super) fn lay_out_chain_weights(&mut self) -> Result<(), Error> {
        let chains = self.chains;
        let mut tasks = Vec::new();
        let mut most = 0;
        for chain in chains {
            let mut lanes = Vec::new();
            for lane in &chain.lanes {
                let ways = [Some(&lane.forward), lane.backward.as_ref()];
                lanes.push(ways.map(|source| source.map_or(0, |s| self.lay_out(s, &mut tasks, &mut most))));
            }
            self.chain_weights.push(lanes);
        }
        self.launch("chain_weights", &tasks, [most.div_ceil(1024), tasks.len(), 1], 256, 0)?;
        // Chains fetch their weights before they wait for what they follow.
        self.in_order = !tasks.is_empty();
        Ok(())
    }

    /// The weights of a kernel: where they will lie, and what is to be done.
    fn lay_out(&mut self, source: &Source, tasks: &mut Vec<t::ChainWeightTask>, most: &mut usize) -> t::Address {
        let place = self.room(source.shared / 4);
        for w in &source.weights {
            let (stride, kind) = match w.layout {
                Layout::Rows => (0, 0),
                Layout::Fours { stride } => (stride, 1),
                Layout::Vector => (0, 2),
            };
            let (from, to) = (self.param_at(w.param), place + 4 * w.at as u64);
            let [rows, cols, stride] = [w.rows, w.cols, stride].map(|n| n as i32);
            tasks.push(t::ChainWeightTask { from, to, rows, cols, stride, kind });
            *most = (*most).max(w.rows * w.cols);
        }
        place
    }

    pub(super) fn chain_forward(&mut self, index: usize) -> Result<(), Error> {
        let chain = &self.chains[index];
        self.repeats(chain.ops.clone(), false)?;
        let kernels = chain.lanes.iter().enumerate();
        self.launch_chain(kernels.map(|(i, l)| (&l.lane, &l.forward, self.chain_weights[index][i][0])).collect())
    }

    pub(super) fn chain_backward(&mut self, index: usize) -> Result<(), Error> {
        let chain = &self.chains[index];
        let kernels = chain.lanes.iter().enumerate();
        let kernels =
            kernels.filter_map(|(i, l)| Some((&l.lane, l.backward.as_ref()?, self.chain_weights[index][i][1])));
        self.launch_chain(kernels.collect())?;
        for step in chain.lanes.iter().flat_map(|l| &l.lane.steps) {
            step.reads().iter().for_each(|s| self.written[s.value.0] = true);
            if let Step::Map { map, .. } = step {
                self.gathered.push(Use { weight: map.weight, bias: map.bias, x: map.x, dy: map.y });
            }
        }
        if !self.handed.kept {
            self.gathered_weights()?;
        }
        self.repeats(chain.ops.clone(), true)
    }

    /// One launch for all lanes of the same kernel: lanes, kernels, and where their weights lie.
    fn launch_chain(&mut self, kernels: Vec<(&Lane, &Source, t::Address)>) -> Result<(), Error> {
        for (name, members) in group_by(kernels.iter().map(|k| &k.1.name)) {
            let Source { shared, room, .. } = kernels[members[0]].1;
            let mut tasks = Vec::new();
            let mut rows = 0;
            for &m in &members {
                let (lane, source, weights) = kernels[m];
                let y = lane.steps[0].y().value;
                rows = rows.max(self.rows(y));
                let slices = lane.steps.iter().flat_map(|s| s.reads().into_iter().chain([s.y()]));
                self.check_count(slices.map(|s| self.len_of(s.value)).max().unwrap_or(0))?;
                let places: Vec<t::Address> = source.places.iter().map(|p| self.chain_place(p, y)).collect();
                tasks.push(t::ChainTask { places: self.tables.push(&places), weights, space: self.space(y), pad: 0 });
            }
            // Weights are fetched once for a block, so there are no more blocks than the card may hold at once.
            let at_once = ((self.module.shared_memory + RESERVED) / (room + RESERVED)).clamp(1, MOST_BLOCKS);
            let blocks = (at_once * self.module.processors).div_ceil(tasks.len()).min(rows.div_ceil(CHAIN_ROWS));
            self.launch(name, &tasks, [blocks, tasks.len(), 1], CHAIN_THREADS, *shared)?;
        }
        Ok(())
    }

    /// Where something lies; rows are those of `y`. Parts of a norm's gradients are summed at the end.
    fn chain_place(&mut self, place: &Place, y: Value) -> t::Address {
        match *place {
            Place::Value(v) => self.value(v),
            Place::Gradient(v) => self.grad(v),
            Place::Parts { norm, cols } => {
                let count = self.rows(y).div_ceil(WARP_ROWS);
                let parts = self.room(count * 2 * cols);
                let sums = self.norm_sums(norm, cols, parts, count, WARP_ROWS, self.space(y));
                self.sums.extend(sums);
                parts
            }
        }
    }
}
