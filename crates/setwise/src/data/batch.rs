//! Batches: as drawn, and as a model sees them.

use std::ops::Range;

use rand::SeedableRng;
use setwise_engine::splitmix64;

use super::{Generator, Sampler, Span, Targets};
use crate::sets::{Beside, Canonical, Frame, PackedSet, SetView, Whitening, fits};
use crate::{Error, Result, SetBatch};

/// What a batch is for; each use has seeds of its own, so that no example is seen in two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// To learn from.
    Training,
    /// To watch progress by.
    Validation,
    /// To judge the result by.
    Test,
}

/// The seed of batch `index` of a stream.
pub fn batch_seed(seed: u64, stream: Stream, index: u64) -> u64 {
    let start = splitmix64(seed ^ splitmix64(stream as u64 + 1));
    splitmix64(start.wrapping_add(index))
}

/// One set of every example, as drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawnSet {
    /// All rows, row-major.
    pub rows: Vec<f64>,
    /// `offsets[i]..offsets[i + 1]` are the rows of example `i`.
    pub offsets: Vec<usize>,
}

/// Examples as drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The sets.
    pub sets: Vec<DrawnSet>,
    /// Numbers in a row of each.
    pub widths: Vec<usize>,
    /// A label per example.
    pub labels: Vec<f64>,
    /// A label per element of each set, where they were asked for and elements have one.
    pub elements: Vec<Vec<f64>>,
    /// What they were drawn from.
    pub seed: u64,
}

/// Examples as a model sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The sets.
    pub sets: SetBatch,
    /// A label per example.
    pub labels: Vec<f64>,
    /// What every number of an answer is held against, example by example; of answers per element set by set.
    pub targets: Vec<f32>,
    /// What they were drawn from.
    pub seed: u64,
    /// How many examples could only be whitened with a ridge: their points lie in fewer dimensions than they have coordinates.
    pub deficient: usize,
}

impl Drawn {
    /// Draws examples, with labels of their elements if targets ask for these.
    pub fn draw(sampler: &dyn Sampler, targets: &Targets, dim: usize, size: Span, examples: usize, seed: u64) -> Self {
        let mut rng = Generator::seed_from_u64(seed);
        let mut rows = vec![Vec::new(); sampler.sets()];
        let mut offsets = vec![vec![0]; sampler.sets()];
        let mut elements = vec![Vec::new(); if *targets == Targets::Elements { sampler.sets() } else { 0 }];
        let mut labels = Vec::with_capacity(examples);
        for _ in 0..examples {
            labels.push(match elements.is_empty() {
                true => sampler.draw(dim, size, &mut rng, &mut rows),
                false => sampler.draw_with_elements(dim, size, &mut rng, &mut rows, &mut elements),
            });
            for (offsets, rows) in offsets.iter_mut().zip(&rows) {
                offsets.push(rows.len() / dim);
            }
        }
        let sets = rows.into_iter().zip(offsets).map(|(rows, offsets)| DrawnSet { rows, offsets }).collect();
        Drawn { sets, widths: vec![dim; sampler.sets()], labels, elements, seed }
    }

    /// The rows of one example's set.
    pub fn rows(&self, set: usize, example: usize) -> &[f64] {
        let (s, width) = (&self.sets[set], self.widths[set]);
        &s.rows[s.offsets[example] * width..s.offsets[example + 1] * width]
    }

    /// Writes the sets of each example in the coordinates wanted (they must have one width then, and be two where mixtures are fitted), and
    /// packs them for a model.
    pub fn prepare(&self, frame: Frame, targets: &Targets) -> Result<Batch> {
        let mut packed: Vec<Vec<f32>> = self.sets.iter().map(|_| Vec::new()).collect();
        for (k, packed) in packed.iter_mut().enumerate() {
            packed.reserve_exact(self.sets[k].rows.len() / self.widths[k] * frame.width(self.widths[k]));
        }
        let mut deficient = 0;
        match frame {
            Frame::Own => {
                let rows = packed.iter_mut().zip(&self.sets);
                rows.for_each(|(packed, set)| packed.extend(set.rows.iter().map(|&x| x as f32)));
            }
            _ => {
                for first in (0..self.labels.len()).step_by(fits::TOGETHER) {
                    let last = self.labels.len().min(first + fits::TOGETHER);
                    deficient += self.prepare_some(frame, first..last, &mut packed)?;
                }
            }
        }
        let sets = packed
            .into_iter()
            .zip(self.sets.iter().zip(&self.widths))
            .map(|(data, (s, &width))| PackedSet::new(data, frame.width(width), s.offsets.clone()))
            .collect();
        let labels = self.labels.clone();
        let targets = match targets {
            Targets::Elements => self.elements.concat().iter().map(|&l| l as f32).collect(),
            _ => labels.iter().flat_map(|&l| std::iter::repeat_n(targets.target(l) as f32, targets.width())).collect(),
        };
        Ok(Batch { sets: SetBatch::new(sets)?, labels, targets, seed: self.seed, deficient })
    }

    /// Appends examples in the coordinates wanted; says how many of them could only be whitened with a ridge.
    fn prepare_some(&self, frame: Frame, examples: Range<usize>, packed: &mut [Vec<f32>]) -> Result<usize> {
        let (width, mut deficient) = (self.widths[0], 0);
        let mut mapped: Vec<DrawnSet> =
            self.sets.iter().map(|_| DrawnSet { rows: Vec::new(), offsets: vec![0] }).collect();
        for example in examples.clone() {
            let sets: Vec<&[f64]> = (0..self.sets.len()).map(|k| self.rows(k, example)).collect();
            let map = Map::of(frame, &sets, width);
            deficient += usize::from(map.rank() < width);
            for (mapped, rows) in mapped.iter_mut().zip(sets) {
                let start = mapped.rows.len();
                mapped.rows.resize(start + rows.len(), 0.0);
                map.apply(rows, &mut mapped.rows[start..]);
                mapped.offsets.push(mapped.rows.len() / width);
            }
        }
        let Beside { own, fits } = frame.beside();
        let columns = match (fits, &mapped[..]) {
            (false, _) => None,
            (true, [p, q]) => {
                for set in [p, q] {
                    let longest = set.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
                    fits::check_memory(longest, width).map_err(Error::Sets)?;
                }
                Some(fits::columns([p, q].map(|s| SetView { data: &s.rows, width, offsets: &s.offsets })))
            }
            (true, sets) => {
                return Err(Error::Sets(format!("mixtures are fitted to two sets, examples have {}", sets.len())));
            }
        };
        for (k, packed) in packed.iter_mut().enumerate() {
            let given = &self.sets[k].rows[self.sets[k].offsets[examples.start] * width..];
            for (i, (mapped, given)) in mapped[k].rows.chunks_exact(width).zip(given.chunks_exact(width)).enumerate() {
                packed.extend(mapped.iter().map(|&x| x as f32));
                if own {
                    packed.extend(given.iter().map(|&x| x as f32));
                }
                if let Some(columns) = &columns {
                    packed.extend_from_slice(&columns[k][i * fits::COLUMNS..(i + 1) * fits::COLUMNS]);
                }
            }
        }
        Ok(deficient)
    }
}

/// The map of one example's points into a frame that is not their own.
enum Map {
    Whitened(Whitening),
    Canonical(Canonical),
}

impl Map {
    /// Of a frame; the canonical one is that of the first two sets.
    fn of(frame: Frame, sets: &[&[f64]], dim: usize) -> Self {
        match (frame, sets) {
            (Frame::Canonical(_), [p, q, ..]) => Map::Canonical(Canonical::of(p, q, dim)),
            _ => Map::Whitened(Whitening::of(sets, dim)),
        }
    }

    fn rank(&self) -> usize {
        match self {
            Map::Whitened(w) => w.rank(),
            Map::Canonical(c) => c.rank(),
        }
    }

    fn apply(&self, rows: &[f64], out: &mut [f64]) {
        match self {
            Map::Whitened(w) => w.apply(rows, out),
            Map::Canonical(c) => c.apply(rows, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Divergence, Label, MixtureLaw};
    use super::*;

    fn drawn(examples: usize, seed: u64) -> Drawn {
        let sampler = Divergence { mixture: MixtureLaw::default(), label: Label::Sample };
        Drawn::draw(&sampler, &Targets::Label, 3, Span::new(1, 9), examples, seed)
    }

    #[test]
    fn the_same_seed_draws_the_same_and_fewer_examples_are_the_first_of_more() {
        let (few, many) = (drawn(3, 7), drawn(8, 7));
        assert_eq!(many, drawn(8, 7));
        assert_ne!(many.labels, drawn(8, 8).labels);
        assert_eq!(few.labels, many.labels[..3]);
        assert_eq!(few.rows(1, 2), many.rows(1, 2));
    }

    #[test]
    fn examples_in_fewer_dimensions_than_coordinates_are_counted() {
        let sampler = Divergence { mixture: MixtureLaw::default(), label: Label::Sample };
        // Two points span a line.
        let batch = Drawn::draw(&sampler, &Targets::Label, 3, Span::new(1, 1), 5, 1)
            .prepare(Frame::Whitened(Beside::default()), &Targets::Label)
            .unwrap();
        assert_eq!(batch.deficient, 5);
        assert_eq!(
            Drawn::draw(&sampler, &Targets::Label, 3, Span::new(9, 9), 5, 1)
                .prepare(Frame::Whitened(Beside::default()), &Targets::Label)
                .unwrap()
                .deficient,
            0
        );
        assert!(batch.sets.sets()[0].data().iter().all(|x| x.is_finite()));
    }

    #[test]
    fn own_coordinates_and_fits_follow_those_of_the_frame() {
        let drawn = drawn(4, 2);
        for frame in [Frame::Whitened, Frame::Canonical] {
            let plain = drawn.prepare(frame(Beside::default()), &Targets::Label).unwrap();
            for (own, fits) in [(false, false), (true, false), (false, true), (true, true)] {
                let seen = drawn.prepare(frame(Beside { own, fits }), &Targets::Label).unwrap();
                let (plain, seen) = (&plain.sets.sets()[1], &seen.sets.sets()[1]);
                let width = 3 + if own { 3 } else { 0 } + if fits { fits::COLUMNS } else { 0 };
                assert_eq!((seen.width(), seen.offsets()), (width, plain.offsets()));
                for ((row, plain), given) in
                    seen.data().chunks(width).zip(plain.data().chunks(3)).zip(drawn.sets[1].rows.chunks(3))
                {
                    assert_eq!(row[..3], *plain);
                    assert!(!own || row[3..6].iter().zip(given).all(|(a, &b)| *a == b as f32));
                }
                if fits {
                    let rows = [0, 1].map(|k| {
                        let set =
                            drawn.prepare(frame(Beside::default()), &Targets::Label).unwrap().sets.sets()[k].clone();
                        (set.data().iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), set.offsets().to_vec())
                    });
                    let wanted =
                        &fits::columns([0, 1].map(|k| SetView { data: &rows[k].0, width: 3, offsets: &rows[k].1 }))[1];
                    let found = seen.data().chunks(width).flat_map(|row| &row[width - fits::COLUMNS..]);
                    assert!(found.zip(wanted).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + b.abs())));
                }
            }
        }
    }

    #[test]
    fn seeds_of_neighbouring_batches_and_streams_differ() {
        let mut seeds: Vec<u64> = Vec::new();
        for stream in [Stream::Training, Stream::Validation, Stream::Test] {
            for seed in 0..3 {
                seeds.extend((0..1000).map(|i| batch_seed(seed, stream, i)));
            }
        }
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 9000);
    }
}
