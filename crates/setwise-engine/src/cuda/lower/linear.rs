//! Linear maps: products of rows, gradients of inputs with transposed weights, gradients of weights in parts.

use std::ops::Range;

use super::super::driver;
use super::super::tables::{self as t, Address};
use super::joined::joined;
use super::tiles::{Split, Tiles};
use super::{Builder, Capacity, WALKERS, in_chain};
use crate::error::Error;
use crate::flow::group_by;
use crate::program::{Activation, Linear, Map, Mode, Op, Program, Slice};

/// One use of a weight; places are those in the parameters.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub weight: usize,
    pub bias: Option<usize>,
    pub x: Slice,
    pub dy: Slice,
}

impl Use {
    fn has_few_inputs(&self) -> bool {
        self.x.cols <= FEW_TERMS
    }
}

/// A product and what it is a sum of.
pub(super) struct Product {
    pub task: t::ProductTask,
    pub terms: Vec<t::Term>,
    /// Most rows.
    pub rows: usize,
}

impl Product {
    /// Whether all of it can be read and written sixteen bytes at a time.
    fn in_chunks(&self) -> bool {
        let t = &self.task;
        let places = [t.y, t.bias, t.residual, t.residual2, t.gate, t.gain, t.shift, t.normalised];
        self.terms.iter().all(|t| t.vec_a != 0 && t.vec_b != 0)
            && places.iter().all(|p| p.is_multiple_of(16))
            && [t.n, t.ldy, t.ldr, t.ldr2, t.ldg].iter().all(|n| n % 4 == 0)
    }

    /// Steps of 32 along the sum.
    fn steps(&self) -> usize {
        self.terms.iter().map(|t| (t.k as usize).div_ceil(32)).sum()
    }
}

/// A product of one term and nothing else.
pub(super) fn no_product(space: t::Space) -> t::ProductTask {
    t::ProductTask {
        terms: 0,
        y: 0,
        bias: 0,
        residual: 0,
        residual2: 0,
        gate: 0,
        gain: 0,
        shift: 0,
        normalised: 0,
        inv_std: 0,
        count: 1,
        ldy: 0,
        ldr: 0,
        ldr2: 0,
        ldg: 0,
        n: 0,
        activation: 0,
        accumulate: 0,
        pairs: 0,
        space,
        steps: 0,
        stages: 0,
    }
}

fn activation(a: Activation) -> i32 {
    match a {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Sigmoid => 2,
    }
}

/// Numbers a product's sums have, and results its rows have, up to which it needs no matrix units.
const FEW_TERMS: usize = 4;
const FEW_OUTPUTS: usize = 8;

/// Parts a weight's gradient is summed from are spread over about this many blocks.
pub(super) const WEIGHT_BLOCKS: usize = 264;

/// Most numbers that the results of linear maps may have for the gradients of all weights to be made together at the end of a backward pass: in few launches that fill the card,
/// at the price of gradients that have to stay until then and cannot hand their places over. With more, a launch of its own fills the card as well.
const MOST_GATHERED: usize = 3 << 27;

/// Whether the gradients of all weights are made together.
pub(in super::super) fn gathers_weights(program: &Program, capacity: &Capacity) -> bool {
    let numbers = |m: &Map| capacity.rows_of(&program.values[m.y.value.0]) * m.y.cols;
    let maps = program.ops.iter().flat_map(|op| match op {
        Op::Linear(l) => l.maps.as_slice(),
        _ => &[],
    });
    program.mode == Mode::Train && maps.map(numbers).sum::<usize>() <= MOST_GATHERED
}

impl<'a> Builder<'a> {
    pub(super) fn linear_forward(&mut self, op: &Linear) -> Result<(), Error> {
        let maps = joined(self.program, op, &self.apart);
        let mut products = Vec::new();
        for m in &maps {
            let ((x, ldx), (y, ldy)) = (self.slice(m.x), self.slice(m.y));
            let (residual, ldr) = m.residual.map_or((0, 0), |r| self.slice(r));
            let k = m.x.cols as i32;
            let term = t::Term {
                a: x,
                b: self.param_at(m.weight),
                lda: ldx,
                ldb: k,
                maps: 0,
                k,
                vec_a: i32::from(self.aligned(m.x)),
                vec_b: i32::from(m.x.cols.is_multiple_of(4) && m.weight.is_multiple_of(4)),
                pad: 0,
            };
            let task = t::ProductTask {
                y,
                bias: m.bias.map_or(0, |b| self.param_at(b)),
                residual,
                ldr,
                ldy,
                n: m.y.cols as i32,
                activation: activation(op.activation),
                gain: m.norm.map_or(0, |n| self.param(n.gain)),
                shift: m.norm.map_or(0, |n| self.param(n.shift)),
                normalised: m.norm.map_or(0, |n| self.value(n.normalised)),
                inv_std: m.norm.map_or(0, |n| self.value(n.inv_std)),
                ..no_product(self.space(m.x.value))
            };
            products.push(Product { task, terms: vec![term], rows: self.rows(m.x.value) });
        }
        let rows = maps.iter().map(|m| self.rows(m.x.value)).max().unwrap_or(0);
        if self.product(&products, rows)? {
            return Ok(());
        }
        let norms: Vec<t::NormTask> =
            maps.iter().filter_map(|m| m.norm.map(|n| self.norm_task(&[m.y], m.y, Some(n)))).collect();
        self.norms(&norms, rows)
    }

    /// Tiled products in the shape that suits their width. Tells whether norms were taken as well.
    pub(super) fn product(&mut self, products: &[Product], rows: usize) -> Result<bool, Error> {
        let widest = products.iter().map(|p| p.task.n as usize).max().unwrap_or(0);
        let normed = products.iter().any(|p| p.task.gain != 0);
        let wide = self.module.wide && products.iter().all(Product::in_chunks);
        // Norms are taken where whole rows lie in one block, unless wide rows are so few that narrower blocks and a launch of its own for the norm are done sooner.
        let few_rows = widest > 128 && 16 * products.len() * rows.div_ceil(128) <= self.module.processors;
        let whole_rows = wide && normed && widest <= 256 && !few_rows;
        let few = |p: &Product| p.terms.iter().map(|t| t.k as usize).sum::<usize>() <= FEW_TERMS;
        let few_terms = products.iter().all(few) && u32::try_from(rows * widest).is_ok();
        let thin = !whole_rows && (few_terms || widest <= FEW_OUTPUTS);
        if wide && !thin {
            self.product_wide(products, rows, widest, whole_rows)?;
            return Ok(whole_rows || !normed);
        }
        let even = |t: &t::ProductTask| t.y.is_multiple_of(8) && t.ldy % 2 == 0 && t.n % 2 == 0;
        let tasks: Vec<t::ProductTask> = products
            .iter()
            .map(|p| t::ProductTask {
                terms: self.tables.push(&p.terms),
                count: p.terms.len() as i32,
                pairs: i32::from(even(&p.task)),
                ..p.task
            })
            .collect();
        if thin {
            if few_terms {
                self.walk("product_few_terms", &tasks, rows * widest)?;
            } else {
                let grid = [rows.div_ceil(4).min(2 * WALKERS), tasks.len(), 1];
                self.launch("product_few_outputs", &tasks, grid, 128, 0)?;
            }
            return Ok(!normed);
        }
        let (name, bm, bn, block, stages) = match widest {
            128.. if self.module.fits(3 * 256 * 36 * 4) => ("product_large", 128, 128, 256, 3),
            64.. => ("product_medium", 128, 64, 256, 3),
            _ => ("product_small", 64, 32, 128, 2),
        };
        let grid = [rows.div_ceil(bm), widest.div_ceil(bn), tasks.len()];
        self.launch(name, &tasks, grid, block, stages * (bm + bn) * 36 * 4)?;
        Ok(false)
    }

    /// Products by warpgroups, whose operands the copy engine fetches; with norms if all of a row lies in one block.
    fn product_wide(&mut self, products: &[Product], rows: usize, widest: usize, norms: bool) -> Result<(), Error> {
        let steps = products.iter().map(Product::steps).max().unwrap_or(0);
        let tiles = Tiles::new(rows, widest, products.len(), steps, norms, self.module.processors);
        let (left_rows, right_rows) = tiles.fetched();
        let mut tasks = Vec::new();
        for p in products {
            let mut terms = p.terms.clone();
            for term in &mut terms {
                let k = term.k as usize;
                let left = driver::tensor_map(term.a, p.rows, k, term.lda as usize, left_rows)?;
                let right = driver::tensor_map(term.b, p.task.n as usize, k, term.ldb as usize, right_rows)?;
                term.maps = self.tables.push(&[left, right]);
            }
            tasks.push(t::ProductTask {
                terms: self.tables.push(&terms),
                count: terms.len() as i32,
                steps: p.steps() as i32,
                stages: tiles.stages as i32,
                gain: if norms { p.task.gain } else { 0 },
                ..p.task
            });
        }
        self.launch(&tiles.kernel(), &tasks, [tiles.blocks, 1, tasks.len()], 288, tiles.shared())
    }

    pub(super) fn linear_backward(&mut self, at: usize, op: &Linear) -> Result<(), Error> {
        // Gradients of residuals that begin here are written by the norm; others are left to a product, or added up below.
        let residuals = op.maps.iter().filter_map(|m| m.residual.map(|r| (r, m.y)));
        let later = |p: &(Slice, Slice)| self.handed.later.iter().any(|l| l.from == at && (l.residual, l.y) == *p);
        let residuals: Vec<_> = residuals.filter(|p| !later(p)).collect();
        let norms: Vec<_> = op
            .maps
            .iter()
            .filter_map(|m| {
                m.norm.map(|n| (m.y, n, m.residual.filter(|&r| self.begins(&residuals, r, m.y)).into_iter().collect()))
            })
            .collect();
        self.norms_backward(&norms)?;
        if op.activation != Activation::None && !op.maps.iter().all(|m| self.gated[m.y.value.0]) {
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
        let copied = |p: &(Slice, Slice)| norms.iter().any(|n: &(_, _, Vec<Slice>)| n.0 == p.1 && n.2.contains(&p.0));
        let (copied, added): (Vec<_>, Vec<_>) = residuals.into_iter().partition(copied);
        self.add_gradients(added)?;
        copied.iter().for_each(|p| self.written[p.0.value.0] = true);
        self.linear_inputs(at, op)?;
        let maps = joined(self.program, op, &self.apart);
        let uses = maps.iter().map(|m| Use { weight: m.weight, bias: m.bias, x: m.x, dy: m.y });
        self.gathered.extend(uses);
        if self.handed.kept { Ok(()) } else { self.gathered_weights() }
    }

    /// Gradients of the inputs of operation `at`, with those of residuals that were left to it.
    fn linear_inputs(&mut self, at: usize, op: &Linear) -> Result<(), Error> {
        let maps = joined(self.program, op, &self.apart);
        let groups = group_by(maps.iter().map(|m| m.x));
        let mut products = Vec::new();
        let mut rows = 0;
        for (x, members) in &groups {
            if !self.wants_grad(x.value) {
                continue;
            }
            let terms = members.iter().map(|&m| self.gradient_term(maps[m].y, maps[m].weight)).collect();
            let (y, ldy) = self.grad_slice(*x);
            let (gate, ldg) = if self.gated[x.value.0] { self.slice(*x) } else { (0, 0) };
            let left = self.handed.later.iter().filter(|l| l.to == at && l.residual == *x);
            let mut left = left.map(|l| self.grad_slice(l.y));
            let ((residual, ldr), (residual2, ldr2)) = (left.next().unwrap_or((0, 0)), left.next().unwrap_or((0, 0)));
            let task = t::ProductTask {
                y,
                residual,
                ldr,
                residual2,
                ldr2,
                gate,
                ldg,
                ldy,
                n: x.cols as i32,
                accumulate: i32::from(self.written[x.value.0]),
                ..no_product(self.space(x.value))
            };
            products.push(Product { task, terms, rows: self.rows(x.value) });
            rows = rows.max(self.rows(x.value));
        }
        self.product(&products, rows)?;
        for (x, _) in &groups {
            self.written[x.value.0] = true;
        }
        Ok(())
    }

    /// dy W as a product of rows, with the transposed weight.
    pub(super) fn gradient_term(&self, dy: Slice, weight: usize) -> t::Term {
        let (a, lda) = self.grad_slice(dy);
        let k = dy.cols as i32;
        t::Term {
            a,
            b: self.places.transposed + 4 * weight as u64,
            lda,
            ldb: k,
            maps: 0,
            k,
            vec_a: i32::from(self.aligned(dy)),
            vec_b: i32::from(dy.cols.is_multiple_of(4) && weight.is_multiple_of(4)),
            pad: 0,
        }
    }

    /// Transposes all weights that gradients of inputs go through.
    pub(super) fn transpose_weights(&mut self) -> Result<(), Error> {
        // Place, rows and columns.
        let mut weights: Vec<(usize, usize, usize)> = Vec::new();
        for (_, op) in self.program.ops.iter().enumerate().filter(|(i, _)| !in_chain(self.chains, *i)) {
            match op {
                Op::Linear(l) => {
                    let maps = joined(self.program, l, &self.apart);
                    let wanted = maps.iter().filter(|m| self.wants_grad(m.x.value));
                    weights.extend(wanted.map(|m| (m.weight, m.y.cols, m.x.cols)));
                }
                Op::Pairs(p) => weights.extend(p.nets.iter().map(|n| {
                    let spec = self.program.params.spec(n.weight);
                    (spec.offset, spec.shape[0], spec.shape[1])
                })),
                _ => {}
            }
        }
        weights.sort_unstable();
        weights.dedup();
        let most = weights.iter().map(|w| w.1.div_ceil(64) * w.2.div_ceil(64)).max().unwrap_or(0);
        let tasks: Vec<t::TransposeTask> = weights
            .iter()
            .map(|&(weight, rows, cols)| {
                let to = self.places.transposed + 4 * weight as u64;
                t::TransposeTask { from: self.param_at(weight), to, rows: rows as i32, cols: cols as i32 }
            })
            .collect();
        // Blocks of the largest weights take several tiles, so that those of others do not stand idle.
        self.launch("transpose", &tasks, [most.min(64), tasks.len(), 1], 256, 0)
    }

    /// Outputs and inputs of a tile of the gradients of some weights by the copy engine, where that can fetch all.
    fn weight_tiles(&self, uses: &[Use]) -> Option<(usize, usize)> {
        let least = |f: fn(&Use) -> usize| uses.iter().map(f).min().unwrap_or(0);
        let (n, k) = (least(|u| u.dy.cols), least(|u| u.x.cols));
        let in_chunks = |u: &Use| self.aligned(u.x) && self.aligned(u.dy);
        // Widths of which tiles leave little empty.
        let suit = |bm: usize, bn: usize| {
            let fits = |cols: usize, tile: usize| cols.is_multiple_of(tile) || cols % tile > tile / 2;
            uses.iter().all(|u| fits(u.dy.cols, bm) && fits(u.x.cols, bn))
        };
        let wide = self.module.wide && uses.iter().all(in_chunks);
        let broad = [(128, 256), (256, 128), (128, 128)].into_iter().find(|&(bm, bn)| suit(bm, bn));
        let narrow = || (if (1..=64).contains(&(n % 128)) { 64 } else { 128 }, if k <= 32 { 32 } else { 64 });
        wide.then(|| broad.unwrap_or_else(narrow))
    }

    /// Gradients of all weights that were left for the end, those whose tiles are alike in one launch.
    pub(super) fn gathered_weights(&mut self) -> Result<(), Error> {
        let uses = std::mem::take(&mut self.gathered);
        let kind = |u: &Use| (self.weight_tiles(std::slice::from_ref(u)), u.has_few_inputs());
        for (_, members) in group_by(uses.iter().map(kind)) {
            let alike: Vec<Use> = members.iter().map(|&m| uses[m]).collect();
            self.linear_weights(&alike)?;
        }
        Ok(())
    }

    /// Gradients of weights and biases.
    pub(super) fn linear_weights(&mut self, uses: &[Use]) -> Result<(), Error> {
        let groups = group_by(uses.iter().map(|u| (u.weight, u.bias)));
        let flow = self.weight_tiles(uses);
        let (name, bm, bn, block, shared, blocks) = if let Some((bm, bn)) = flow {
            // Threads, stages and blocks to a processor, as in the kernels.
            let (block, stages, each) = match (bm, bn) {
                (128, 256) | (256, 128) => (384, 4, 1),
                (128, 128) => (256, 3, 2),
                (128, _) => (160, 4, 2),
                (_, 64) => (160, 4, 3),
                _ => (160, 4, 4),
            };
            let shared = stages * 32 * (bm + bn) * 4 + 1024;
            (format!("weights_flow_m{bm}_n{bn}"), bm, bn, block, shared, each * self.module.processors)
        } else if uses.iter().all(Use::has_few_inputs) {
            let blocks = 4 * self.module.processors;
            ("weights_few_terms".to_owned(), 32, FEW_TERMS, 256, 0, blocks)
        } else {
            let narrowest = uses.iter().map(|u| u.dy.cols.min(u.x.cols)).min().unwrap_or(0);
            let (name, tile, block) = match narrowest {
                128.. if self.module.fits(3 * 32 * 272 * 4) => ("linear_weights_large", 128, 128),
                64.. => ("linear_weights_medium", 64, 128),
                _ => ("linear_weights_small", 32, 64),
            };
            (name.to_owned(), tile, tile, block, 3 * 32 * (2 * tile + 16) * 4, WEIGHT_BLOCKS)
        };
        let tiles = |u: &Use| u.dy.cols.div_ceil(bm) * u.x.cols.div_ceil(bn);
        let all: usize = uses.iter().map(tiles).sum();
        let longest = uses.iter().map(|u| self.rows(u.dy.value)).max().unwrap_or(0);
        let f = self.module.function(&name, shared)?;
        let clusters = |size| if flow.is_some() { driver::active_clusters(f, block, shared, size) } else { 0 };
        let Split { blocks: splits, together } = Split::new(all, longest, blocks, clusters);
        // What a cluster has is added up before it is written.
        let parts_each = splits / together;
        let (mut tasks, mut sums) = (Vec::new(), Vec::new());
        for ((weight, _), members) in &groups {
            let u = &uses[members[0]];
            let (n, k) = (u.dy.cols, u.x.cols);
            let slot = n * k + n;
            let regions = [Some(*weight..*weight + n * k), u.bias.map(|b| b..b + n)];
            // What is one part is no sum: it can be written where it belongs.
            let fits = |r: &Range<usize>| r.start.is_multiple_of(4) && self.gradients.fresh(r);
            let whole = members.len() * parts_each == 1 && regions.iter().flatten().all(fits);
            let (parts, bias) = if whole {
                let grads = self.places.grads;
                regions.into_iter().flatten().for_each(|r| _ = self.gradients.begin(r));
                (grads + 4 * *weight as u64, u.bias.map_or_else(|| self.room(n), |b| grads + 4 * b as u64))
            } else {
                let parts = self.room(members.len() * parts_each * slot);
                (parts, parts + 4 * (n * k) as u64)
            };
            for (i, &m) in members.iter().enumerate() {
                let u = &uses[m];
                let ((x, ldx), (dy, ldy)) = (self.slice(u.x), self.grad_slice(u.dy));
                let maps = if flow.is_some() {
                    let rows = self.rows(u.dy.value);
                    let left = driver::tensor_map(dy, rows, n, ldy as usize, 32)?;
                    let right = driver::tensor_map(x, rows, k, ldx as usize, 32)?;
                    self.tables.push(&[left, right])
                } else {
                    0
                };
                let before = 4 * (i * parts_each * slot) as u64;
                tasks.push(t::WeightTask {
                    dy,
                    x,
                    parts: parts + before,
                    bias: bias + before,
                    maps,
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
            if whole {
                continue;
            }
            let mut sum = |parts: Address, out: Address, len: usize| {
                sums.push(t::SumTask {
                    parts,
                    out,
                    stride: slot as u64,
                    count: (members.len() * parts_each) as i32,
                    len: len as i32,
                    rows_per_part: 0,
                    vec: 0,
                    space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                    fresh: 0,
                });
            };
            sum(parts, self.places.grads + 4 * *weight as u64, n * k);
            if let Some(b) = u.bias {
                sum(bias, self.places.grads + 4 * b as u64, n);
            }
        }
        let most = uses.iter().map(tiles).max().unwrap_or(0);
        self.launch_clusters(&name, &tasks, [most, splits, tasks.len()], block, shared, [1, together])?;
        self.sums.extend(sums);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{FEW_OUTPUTS, FEW_TERMS};

    #[test]
    fn the_kernels_of_few_outputs_and_few_terms_have_room_for_as_many() {
        let kernel = include_str!("../kernels/thin_linear.cu");
        assert!(kernel.contains(&format!("#define FEW_OUTPUTS {FEW_OUTPUTS}\n")));
        assert!(kernel.contains(&format!("#define FEW_TERMS {FEW_TERMS}\n")));
    }
}
