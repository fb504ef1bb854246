//! Examples in memory: a data set, or the content of one batch.

use crate::models::{ModelConfig, OutputKind};
use crate::sets::PackedSet;
use crate::{Error, Result, SetBatch};

/// Examples with their targets.
///
/// ```
/// use setwise::ModelConfig;
/// use setwise::data::Examples;
///
/// let mut examples = Examples::new(&ModelConfig::preset("multi-set-transformer", 1)?);
/// examples.push(&[(&[1.0, 2.0], 1), (&[3.0], 1)], &[&[0.5]])?;
/// examples.push(&[(&[4.0], 1), (&[5.0, 6.0], 1)], &[&[0.7]])?;
/// let (sets, targets) = examples.select(&[1, 0, 1]).into_batch()?;
/// assert_eq!((sets.examples(), targets), (3, vec![0.7, 0.5, 0.7]));
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Examples {
    /// Models that take any width start with width 0; the first example sets it.
    sets: Vec<PackedSet>,
    /// One list for outputs per example; one list per set for outputs per element.
    targets: Vec<PackedSet>,
    per_element: bool,
}

impl Examples {
    /// An empty list of examples for models of this config.
    pub fn new(config: &ModelConfig) -> Self {
        let width = |k: usize| config.input_widths.get(k).copied().unwrap_or(0);
        let per_element = config.output == OutputKind::Equivariant;
        let empty = |width: usize| PackedSet::new(Vec::new(), width, vec![0]);
        Examples {
            sets: (0..config.sets).map(|k| empty(width(k))).collect(),
            targets: vec![empty(config.output_width); if per_element { config.sets } else { 1 }],
            per_element,
        }
    }

    /// Number of examples.
    pub fn len(&self) -> usize {
        self.sets[0].offsets().len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an example of row-major sets with their row widths.
    ///
    /// `targets` is one vector, or one row-major list of vectors per set for outputs per element. Nothing is appended
    /// if a size does not match.
    pub fn push(&mut self, sets: &[(&[f32], usize)], targets: &[&[f32]]) -> Result<()> {
        let mismatch = |reason: String| Err(Error::Sets(reason));
        if sets.len() != self.sets.len() {
            return mismatch(format!("the model takes {} sets, the example has {}", self.sets.len(), sets.len()));
        }
        for (k, (set, &(rows, width))) in self.sets.iter().zip(sets).enumerate() {
            let expected = if set.width() == 0 { sets[0].1 } else { set.width() };
            if width != expected || width == 0 {
                return mismatch(format!("set {k} has rows of width {width}, the model takes {expected} here"));
            }
            if rows.is_empty() || !rows.len().is_multiple_of(width) {
                return mismatch(format!("set {k} has {} numbers, which are no rows of {width}", rows.len()));
            }
        }
        if targets.len() != self.targets.len() {
            return mismatch(format!("there are {} lists of targets for {} sets", targets.len(), self.targets.len()));
        }
        for (k, (packed, target)) in self.targets.iter().zip(targets).enumerate() {
            let rows = if self.per_element { sets[k].0.len() / sets[k].1 } else { 1 };
            if target.len() != rows * packed.width() {
                return mismatch(match self.per_element {
                    true => format!(
                        "the target of set {k} has {} numbers, the model answers with {} for each of {rows} elements",
                        target.len(),
                        packed.width()
                    ),
                    false => {
                        format!("the target has {} numbers, the model answers with {}", target.len(), packed.width())
                    }
                });
            }
        }
        for (set, &(rows, width)) in self.sets.iter_mut().zip(sets) {
            if set.width() == 0 {
                *set = PackedSet::new(Vec::new(), width, vec![0]);
            }
            set.push(rows);
        }
        self.targets.iter_mut().zip(targets).for_each(|(packed, target)| packed.push(target));
        Ok(())
    }

    /// The examples with these indices, in this order.
    ///
    /// # Panics
    /// If an index is out of range.
    pub fn select(&self, examples: &[usize]) -> Examples {
        let gather = |sets: &[PackedSet]| -> Vec<PackedSet> {
            let gather_set = |set: &PackedSet| {
                let mut selected = PackedSet::new(Vec::new(), set.width(), vec![0]);
                examples.iter().for_each(|&i| selected.push(set.example(i)));
                selected
            };
            sets.iter().map(gather_set).collect()
        };
        Examples { sets: gather(&self.sets), targets: gather(&self.targets), per_element: self.per_element }
    }

    /// All examples as a batch, with targets in the order of [`crate::Trainer::step`].
    pub fn into_batch(self) -> Result<(SetBatch, Vec<f32>)> {
        let targets = self.targets.iter().flat_map(|t| t.data()).copied().collect();
        Ok((SetBatch::new(self.sets)?, targets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push_error(examples: &mut Examples, sets: &[(&[f32], usize)], targets: &[&[f32]]) -> String {
        examples.push(sets, targets).unwrap_err().to_string()
    }

    #[test]
    fn mismatched_sizes_are_refused_by_name_and_not_appended() {
        let config = ModelConfig { input_widths: vec![2, 3], ..Default::default() };
        let mut e = Examples::new(&config);
        let (x, y): (&[f32], &[f32]) = (&[1.0, 2.0], &[1.0, 2.0, 3.0]);
        assert_eq!(push_error(&mut e, &[(x, 2)], &[&[1.0]]), "the model takes 2 sets, the example has 1");
        assert_eq!(
            push_error(&mut e, &[(x, 2), (x, 2)], &[&[1.0]]),
            "set 1 has rows of width 2, the model takes 3 here"
        );
        assert_eq!(push_error(&mut e, &[(&[], 2), (y, 3)], &[&[1.0]]), "set 0 has 0 numbers, which are no rows of 2");
        let error = push_error(&mut e, &[(x, 2), (y, 3)], &[&[1.0, 2.0]]);
        assert_eq!(error, "the target has 2 numbers, the model answers with 1");
        assert!(e.is_empty());
        e.push(&[(x, 2), (y, 3)], &[&[1.0]]).unwrap();
        assert_eq!(e.len(), 1);
    }

    #[test]
    fn models_of_any_width_take_that_of_the_first_example() {
        let mut e = Examples::new(&ModelConfig::preset("multi-set-transformer-equi", 2).unwrap());
        let three: &[f32] = &[1.0, 2.0, 3.0];
        assert!(push_error(&mut e, &[(three, 3), (three, 1)], &[&[1.0]]).starts_with("set 1 has rows of width 1"));
        e.push(&[(three, 3), (three, 3)], &[&[1.0]]).unwrap();
        assert!(push_error(&mut e, &[(three, 1), (three, 1)], &[&[1.0]]).starts_with("set 0 has rows of width 1"));
    }

    #[test]
    fn element_targets_are_packed_set_by_set() {
        let config = ModelConfig { output: OutputKind::Equivariant, ..ModelConfig::preset("sum-merge", 1).unwrap() };
        let mut e = Examples::new(&config);
        let error = push_error(&mut e, &[(&[0.0, 0.0], 1), (&[0.0], 1)], &[&[1.0], &[1.0]]);
        assert!(error.contains("target of set 0") && error.contains("2 elements"), "{error}");
        e.push(&[(&[0.0, 0.0], 1), (&[0.0], 1)], &[&[1.0, 2.0], &[3.0]]).unwrap();
        e.push(&[(&[0.0], 1), (&[0.0], 1)], &[&[4.0], &[5.0]]).unwrap();
        assert_eq!(e.into_batch().unwrap().1, [1.0, 2.0, 4.0, 3.0, 5.0]);
    }
}
