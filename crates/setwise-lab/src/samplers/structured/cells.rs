//! Piecewise constant densities on random partitions of the unit cube.

use rand::RngExt;

use setwise::random::Generator;

use crate::samplers::broad::Density;
use crate::samplers::{log_uniform, normal};

/// A density that is constant on boxes.
pub struct Cells {
    dim: usize,
    /// Lower and upper corners of every box: `[cells, 2, dim]`.
    boxes: Vec<f64>,
    /// Splits from the root: column, position, and the children; negative numbers are −1 − cell.
    nodes: Vec<(usize, f64, [i32; 2])>,
    /// Probabilities of the cells.
    weights: Vec<f64>,
    cumulative: Vec<f64>,
    log_density: Vec<f64>,
}

impl Cells {
    fn new(partition: &Partition, weights: Vec<f64>) -> Self {
        let total: f64 = weights.iter().sum();
        let weights: Vec<f64> = weights.into_iter().map(|w| w / total).collect();
        let mut sum = 0.0;
        let cumulative = weights
            .iter()
            .map(|w| {
                sum += w;
                sum
            })
            .collect();
        let volume = |cell: &[f64]| -> f64 {
            let (low, high) = cell.split_at(partition.dim);
            low.iter().zip(high).map(|(a, b)| (b - a).ln()).sum()
        };
        let log_density = weights
            .iter()
            .zip(partition.boxes.chunks_exact(2 * partition.dim))
            .map(|(w, cell)| w.ln() - volume(cell))
            .collect();
        Cells {
            dim: partition.dim,
            boxes: partition.boxes.clone(),
            nodes: partition.nodes.clone(),
            weights,
            cumulative,
            log_density,
        }
    }

    /// KL(p‖q) of two densities on one partition.
    pub fn kl(&self, q: &Cells) -> f64 {
        self.weights.iter().zip(&q.weights).map(|(p, q)| if *p > 0.0 { p * (p / q).ln() } else { 0.0 }).sum()
    }
}

impl Density for Cells {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            let u: f64 = rng.random();
            let cell = self.cumulative.partition_point(|c| *c < u).min(self.weights.len() - 1);
            let (low, high) = self.boxes[cell * 2 * self.dim..(cell + 1) * 2 * self.dim].split_at(self.dim);
            rows.extend(low.iter().zip(high).map(|(a, b)| a + (b - a) * rng.random::<f64>()));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let density = |row: &[f64]| {
            let mut at = if self.nodes.is_empty() { -1 } else { 0 };
            while at >= 0 {
                let (column, position, children) = self.nodes[at as usize];
                at = children[usize::from(row[column] >= position)];
            }
            self.log_density[(-1 - at) as usize]
        };
        rows.chunks_exact(self.dim).map(density).collect()
    }
}

struct Partition {
    dim: usize,
    boxes: Vec<f64>,
    nodes: Vec<(usize, f64, [i32; 2])>,
}

impl Partition {
    /// Draws a partition by recursive splits of a few columns, at random places or in equal parts.
    fn draw(dim: usize, rng: &mut Generator) -> Self {
        let active: Vec<usize> = match rng.random_bool(0.5) {
            true => (0..dim).collect(),
            false => {
                let first = rng.random_range(0..dim);
                (0..rng.random_range(1..=dim.min(3))).map(|i| (first + i) % dim).collect()
            }
        };
        let depth = rng.random_range(1..=7);
        let regular = rng.random_bool(0.5);
        let mut partition = Partition { dim, boxes: Vec::new(), nodes: Vec::new() };
        let whole: Vec<f64> = std::iter::repeat_n(0.0, dim).chain(std::iter::repeat_n(1.0, dim)).collect();
        partition.split(whole, depth, 0, &active, regular, rng);
        partition
    }

    /// Splits a box `depth` times and returns its reference.
    fn split(
        &mut self,
        cell: Vec<f64>,
        depth: usize,
        level: usize,
        active: &[usize],
        regular: bool,
        rng: &mut Generator,
    ) -> i32 {
        if depth == 0 || (!regular && level > 1 && rng.random_bool(0.15)) {
            self.boxes.extend(cell);
            return -((self.boxes.len() / (2 * self.dim)) as i32);
        }
        let column = if regular { active[level % active.len()] } else { active[rng.random_range(0..active.len())] };
        let (low, high) = (cell[column], cell[self.dim + column]);
        let part = if regular { 0.5 } else { rng.random_range(0.15..0.85) };
        let position = low + part * (high - low);
        let at = self.nodes.len();
        self.nodes.push((column, position, [0; 2]));
        let (mut below, mut above) = (cell.clone(), cell);
        below[self.dim + column] = position;
        above[column] = position;
        let children = [
            self.split(below, depth - 1, level + 1, active, regular, rng),
            self.split(above, depth - 1, level + 1, active, regular, rng),
        ];
        self.nodes[at].2 = children;
        at as i32
    }
}

/// Draws two densities on one partition. Some cells can be nearly empty in one of them.
pub fn pair(dim: usize, rng: &mut Generator) -> (Cells, Cells) {
    let partition = Partition::draw(dim, rng);
    let volumes: Vec<f64> = partition
        .boxes
        .chunks_exact(2 * dim)
        .map(|cell| (0..dim).map(|i| cell[dim + i] - cell[i]).product::<f64>())
        .collect();
    let weights = |rng: &mut Generator| -> Vec<f64> {
        let strength = if rng.random_bool(0.4) { 0.0 } else { log_uniform(0.1, 2.0, rng) };
        let (empty, depth) = match rng.random_bool(0.35) {
            true => (rng.random_range(0.1..0.6), log_uniform(2.0, 12.0, rng)),
            false => (0.0, 0.0),
        };
        let one = |v: &f64| v * (strength * normal(rng) - if rng.random_bool(empty) { depth } else { 0.0 }).exp();
        volumes.iter().map(one).collect()
    };
    let (p, q) = (weights(rng), weights(rng));
    (Cells::new(&partition, p), Cells::new(&partition, q))
}
