//! Batches of raw examples, and batches prepared for a model.

use std::ops::Range;

use super::Targets;
use crate::sets::{Append, Axes, Canonical, Coordinates, PackedSet, SetView, Whitening, mixture_features};
use crate::{Error, Result, SetBatch};

/// One set of every example, with raw coordinates in f64.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawSet {
    /// All rows, row-major.
    pub rows: Vec<f64>,
    /// `offsets[i]..offsets[i + 1]` are the rows of example `i`.
    pub offsets: Vec<usize>,
}

/// Examples with raw coordinates in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct RawBatch {
    /// The sets.
    pub sets: Vec<RawSet>,
    /// Row width of each set.
    pub widths: Vec<usize>,
    /// One label per example.
    pub labels: Vec<f64>,
    /// One label per element, by set; for [`Targets::ElementLabels`].
    pub element_labels: Vec<Vec<f64>>,
    /// The seed of the draw.
    pub seed: u64,
}

/// Examples with the inputs and targets of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The sets.
    pub sets: SetBatch,
    /// One label per example.
    pub labels: Vec<f64>,
    /// The target of every output: example by example, or set by set for outputs per element.
    pub targets: Vec<f32>,
    /// The seed of the draw.
    pub seed: u64,
    /// The number of rank-deficient examples; their whitening has a ridge.
    pub deficient: usize,
}

impl RawBatch {
    /// The rows of one example's set.
    pub fn rows(&self, set: usize, example: usize) -> &[f64] {
        let (s, width) = (&self.sets[set], self.widths[set]);
        &s.rows[s.offsets[example] * width..s.offsets[example + 1] * width]
    }

    /// Maps the sets of each example to `coordinates`, and packs them for a model.
    ///
    /// Whitened and canonical axes need sets of one width, mixture log densities exactly two sets.
    pub fn prepare(&self, coordinates: Coordinates, targets: &Targets) -> Result<Batch> {
        let mut packed: Vec<Vec<f32>> = self.sets.iter().map(|_| Vec::new()).collect();
        for (k, packed) in packed.iter_mut().enumerate() {
            packed.reserve_exact(self.sets[k].rows.len() / self.widths[k] * coordinates.width(self.widths[k]));
        }
        let mut deficient = 0;
        match coordinates.axes {
            Axes::Raw => {
                let rows = packed.iter_mut().zip(&self.sets);
                rows.for_each(|(packed, set)| packed.extend(set.rows.iter().map(|&x| x as f32)));
            }
            Axes::Whitened | Axes::Canonical => {
                for first in (0..self.labels.len()).step_by(mixture_features::GROUP) {
                    let last = self.labels.len().min(first + mixture_features::GROUP);
                    deficient += self.prepare_group(coordinates, first..last, &mut packed)?;
                }
            }
        }
        let sets = packed
            .into_iter()
            .zip(self.sets.iter().zip(&self.widths))
            .map(|(data, (s, &width))| PackedSet::new(data, coordinates.width(width), s.offsets.clone()))
            .collect();
        let labels = self.labels.clone();
        let targets = match targets {
            Targets::ElementLabels => self.element_labels.concat().iter().map(|&l| l as f32).collect(),
            _ => labels.iter().flat_map(|&l| std::iter::repeat_n(targets.target(l) as f32, targets.width())).collect(),
        };
        Ok(Batch { sets: SetBatch::new(sets)?, labels, targets, seed: self.seed, deficient })
    }

    /// Appends a group of examples to `packed`; returns how many of them are rank-deficient.
    fn prepare_group(
        &self,
        coordinates: Coordinates,
        examples: Range<usize>,
        packed: &mut [Vec<f32>],
    ) -> Result<usize> {
        let (width, mut deficient) = (self.widths[0], 0);
        let mut mapped: Vec<RawSet> = self.sets.iter().map(|_| RawSet { rows: Vec::new(), offsets: vec![0] }).collect();
        for example in examples.clone() {
            let sets: Vec<&[f64]> = (0..self.sets.len()).map(|k| self.rows(k, example)).collect();
            let map = AffineMap::fit(coordinates.axes, &sets, width);
            deficient += usize::from(map.rank() < width);
            for (mapped, rows) in mapped.iter_mut().zip(sets) {
                let start = mapped.rows.len();
                mapped.rows.resize(start + rows.len(), 0.0);
                map.apply(rows, &mut mapped.rows[start..]);
                mapped.offsets.push(mapped.rows.len() / width);
            }
        }
        let Append { raw, mixture_log_densities } = coordinates.append;
        let log_densities = match (mixture_log_densities, &mapped[..]) {
            (false, _) => None,
            (true, [p, q]) => {
                for set in [p, q] {
                    let max_rows = set.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
                    mixture_features::check_memory(max_rows, width).map_err(Error::Sets)?;
                }
                let views = [p, q].map(|s| SetView { data: &s.rows, width, offsets: &s.offsets });
                Some(mixture_features::log_densities(views))
            }
            (true, sets) => {
                return Err(Error::Sets(format!(
                    "mixture log densities need examples of two sets, these have {}",
                    sets.len()
                )));
            }
        };
        for (k, packed) in packed.iter_mut().enumerate() {
            let original = &self.sets[k].rows[self.sets[k].offsets[examples.start] * width..];
            let rows = mapped[k].rows.chunks_exact(width).zip(original.chunks_exact(width));
            for (i, (mapped, original)) in rows.enumerate() {
                packed.extend(mapped.iter().map(|&x| x as f32));
                if raw {
                    packed.extend(original.iter().map(|&x| x as f32));
                }
                if let Some(columns) = &log_densities {
                    packed.extend_from_slice(&columns[k][i * mixture_features::COLUMNS..][..mixture_features::COLUMNS]);
                }
            }
        }
        Ok(deficient)
    }
}

/// The map from raw coordinates to whitened or canonical ones, of one example.
enum AffineMap {
    Whitened(Whitening),
    Canonical(Canonical),
}

impl AffineMap {
    /// The map to `axes`; canonical axes are those of the first two sets.
    fn fit(axes: Axes, sets: &[&[f64]], dim: usize) -> Self {
        match (axes, sets) {
            (Axes::Canonical, [p, q, ..]) => AffineMap::Canonical(Canonical::fit(p, q, dim)),
            _ => AffineMap::Whitened(Whitening::fit(sets, dim)),
        }
    }

    fn rank(&self) -> usize {
        match self {
            AffineMap::Whitened(w) => w.rank(),
            AffineMap::Canonical(c) => c.rank(),
        }
    }

    fn apply(&self, rows: &[f64], out: &mut [f64]) {
        match self {
            AffineMap::Whitened(w) => w.apply(rows, out),
            AffineMap::Canonical(c) => c.apply(rows, out),
        }
    }
}
