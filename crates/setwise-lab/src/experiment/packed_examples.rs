//! Drawn examples as arrays.

use std::path::Path;

use setwise::data::RawSet;
use setwise::files::write_npy;

use super::ValidExperiment;
use crate::prefetch::Prefetcher;
use crate::samplers::Split;
use crate::{Error, Result};

/// Maximum number of values of a set in memory.
const MAX_NUMBERS: usize = 1 << 31;

/// Names of the sets in files.
const SET_NAMES: [&str; 2] = ["x", "y"];

/// Examples of an experiment before whitening, packed set by set.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedExamples {
    /// The sets. Zeros pad the rows of examples with fewer dimensions.
    pub sets: Vec<RawSet>,
    /// Row width of each set.
    pub widths: Vec<usize>,
    /// One label per example.
    pub labels: Vec<f64>,
    /// Dimensions of each example, if examples may differ in them.
    pub dims: Option<Vec<i64>>,
}

impl PackedExamples {
    /// Maximum number of examples that fit in memory.
    pub fn max_examples(experiment: &ValidExperiment) -> usize {
        let max_width = experiment.task.widths().into_iter().max().unwrap_or(1);
        MAX_NUMBERS / experiment.task.set_size().max.saturating_mul(max_width).max(1)
    }

    /// Draws examples of a split on all threads, in batches of the training's size.
    ///
    /// A curriculum and the training's alternating dimensions have no influence: sizes and dimensions are the task's.
    pub fn draw(experiment: &ValidExperiment, split: Split, examples: usize) -> Result<Self> {
        let (batch, source) = (experiment.training.batch_size, experiment.clone());
        let mut batches = Prefetcher::new(rayon::current_num_threads(), 0, move |i| {
            let count = batch.min(examples.saturating_sub(i as usize * batch));
            source.held_out(split, i, count)
        });
        let widths = experiment.task.widths();
        let mut sets = vec![RawSet { rows: Vec::new(), offsets: vec![0] }; widths.len()];
        let (mut labels, mut dims) = (Vec::new(), Vec::new());
        while labels.len() < examples {
            let drawn = batches.next().ok_or(Error::Prefetch)??.into_raw();
            dims.extend(std::iter::repeat_n(drawn.widths[0] as i64, drawn.labels.len()));
            for (((all, set), drawn_width), &width) in sets.iter_mut().zip(drawn.sets).zip(&drawn.widths).zip(&widths) {
                let first = all.rows.len() / width;
                all.offsets.extend(set.offsets[1..].iter().map(|o| first + o));
                for row in set.rows.chunks_exact(*drawn_width) {
                    all.rows.extend(row);
                    all.rows.resize(all.rows.len() + width - drawn_width, 0.0);
                }
            }
            labels.extend(drawn.labels);
        }
        let dims = experiment.task.held_out_dims().single().is_none().then_some(dims);
        Ok(PackedExamples { sets, widths, labels, dims })
    }

    /// Writes `x.npy`, `x_offsets.npy`, `y.npy`, `y_offsets.npy` and `label.npy` to a folder.
    ///
    /// If examples may differ in dimensions, `dims.npy` holds them.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let file = |name: &str| folder.join(name);
        for ((name, set), &width) in SET_NAMES.iter().zip(&self.sets).zip(&self.widths) {
            write_npy(file(&format!("{name}.npy")), &[set.rows.len() / width, width], &set.rows)?;
            let offsets: Vec<i64> = set.offsets.iter().map(|&o| o as i64).collect();
            write_npy(file(&format!("{name}_offsets.npy")), &[offsets.len()], &offsets)?;
        }
        write_npy(file("label.npy"), &[self.labels.len()], &self.labels)?;
        if let Some(dims) = &self.dims {
            write_npy(file("dims.npy"), &[dims.len()], dims)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    #[test]
    fn zeros_pad_rows_of_fewer_dimensions_and_offsets_count_rows() {
        let text = "[task]\nkind = 'broad-kl'\ndims = [1, 3]\nset-size = [30, 32]\nmax-divergence = 5.0\n\
            [model]\npreset = 'multi-set-transformer-equi'\n[training]\nbatch-size = 4";
        let experiment = Experiment::parse(text).unwrap().validate().unwrap();
        let packed = PackedExamples::draw(&experiment, Split::Training, 10).unwrap();
        assert_eq!((packed.labels.len(), &packed.widths[..]), (10, &[3, 3][..]));
        let dims = packed.dims.unwrap();
        for set in &packed.sets {
            assert_eq!((set.offsets.len(), set.rows.len()), (11, 3 * set.offsets[10]));
            for (i, &dim) in dims.iter().enumerate() {
                let rows = set.rows[3 * set.offsets[i]..3 * set.offsets[i + 1]].chunks_exact(3);
                assert!((30..=32).contains(&rows.len()));
                assert!(
                    rows.flat_map(|row| &row[dim as usize..]).all(|&x| x == 0.0),
                    "example {i} in {dim} dimensions"
                );
            }
        }
    }
}
