//! Ragged batches and small configs for tests of models.
#![allow(dead_code)]

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use setwise::models::{ModelConfig, PRESETS};
use setwise_engine::{BatchView, Real, SetView};

/// A ragged batch in any precision: data, width and offsets of each set.
#[derive(Clone, Debug)]
pub struct Ragged<T> {
    pub sets: Vec<(Vec<T>, usize, Vec<usize>)>,
}

impl<T: Real> Ragged<T> {
    /// `sizes[k][i]` rows of `widths[k]` numbers for set `k` of example `i`.
    pub fn random(widths: &[usize], sizes: &[Vec<usize>], seed: u64) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let sets = widths
            .iter()
            .zip(sizes)
            .map(|(&width, sizes)| {
                let mut offsets = vec![0];
                for n in sizes {
                    offsets.push(offsets.last().unwrap() + n);
                }
                let n = offsets.last().unwrap() * width;
                let data = (0..n).map(|_| T::from_f64(rng.random::<f64>() * 3.0 - 1.5)).collect();
                (data, width, offsets)
            })
            .collect();
        Ragged { sets }
    }

    pub fn view(&self) -> BatchView<'_, T> {
        BatchView {
            sets: self.sets.iter().map(|(data, width, offsets)| SetView { data, width: *width, offsets }).collect(),
        }
    }

    pub fn examples(&self) -> usize {
        self.sets[0].2.len() - 1
    }

    /// The batch of example `i` alone.
    pub fn only(&self, i: usize) -> Self {
        let sets = self
            .sets
            .iter()
            .map(|(data, width, offsets)| {
                let rows = data[offsets[i] * width..offsets[i + 1] * width].to_vec();
                (rows, *width, vec![0, offsets[i + 1] - offsets[i]])
            })
            .collect();
        Ragged { sets }
    }
}

/// A small config of every preset that supports `sets` sets.
pub fn small_presets(sets: usize, dim: usize) -> Vec<(&'static str, ModelConfig)> {
    PRESETS
        .iter()
        .filter(|p| sets > 1 || p.name != "cross-only")
        .map(|p| {
            let mut c =
                ModelConfig::preset(p.name, dim).unwrap().with_sets(sets).with_latent(8).with_hidden(12).with_blocks(2);
            c.heads = 2;
            c.projections = 3;
            c.projection_size = 5;
            c.output_width = 2;
            (p.name, c)
        })
        .collect()
}
