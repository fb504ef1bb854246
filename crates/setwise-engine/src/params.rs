//! All parameters of a model in one flat buffer, with a named view per tensor.

use std::collections::HashMap;
use std::ops::Range;

use rand::{Rng, RngExt};

use crate::real::Real;

/// Initialisation of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Uniform in (−bound, bound).
    Uniform(f64),
    /// Normal with mean zero and this standard deviation.
    Normal(f64),
}

/// Name, shape and offset of a tensor in the flat buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Unique name, as in model files.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// First element in the flat buffer.
    pub offset: usize,
    /// Initialisation.
    pub init: Init,
    /// Whether the optimiser trains it; otherwise it is a running average of the statistic in the gradient buffer.
    pub trained: bool,
}

impl ParamSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True for a tensor without elements, which no layout holds.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// Index of a tensor in a [`ParamLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub(crate) usize);

/// Names, shapes and offsets of all tensors of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParamLayout {
    specs: Vec<ParamSpec>,
    by_name: HashMap<String, usize>,
    len: usize,
    trained: usize,
}

impl ParamLayout {
    /// Adds a tensor, or returns the one of that name: a repeated name shares the weights.
    ///
    /// # Panics
    /// If the name exists with another shape; that is a mistake in the code that builds the model.
    pub fn add(&mut self, name: &str, shape: &[usize], init: Init) -> ParamId {
        self.insert(name, shape, init, true)
    }

    /// Adds a running average, or returns the one of that name. Running averages follow all trained tensors.
    ///
    /// # Panics
    /// As [`ParamLayout::add`].
    pub fn add_running(&mut self, name: &str, shape: &[usize], init: Init) -> ParamId {
        self.insert(name, shape, init, false)
    }

    fn insert(&mut self, name: &str, shape: &[usize], init: Init, trained: bool) -> ParamId {
        if let Some(&i) = self.by_name.get(name) {
            let known = &self.specs[i];
            assert!(
                known.shape == shape && known.trained == trained,
                "parameter {name} is defined twice with different shapes"
            );
            return ParamId(i);
        }
        let offset = if trained { self.trained } else { self.len };
        let spec = ParamSpec { name: name.to_owned(), shape: shape.to_vec(), offset, init, trained };
        let len = spec.len();
        if trained {
            self.specs.iter_mut().filter(|s| !s.trained).for_each(|s| s.offset += len);
            self.trained += len;
        }
        self.len += len;
        self.by_name.insert(name.to_owned(), self.specs.len());
        self.specs.push(spec);
        ParamId(self.specs.len() - 1)
    }

    /// Number of trained elements; they come first in the flat buffer.
    pub fn trained(&self) -> usize {
        self.trained
    }

    /// Number of values in the flat buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All tensors in the order they were added.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// The tensor with this id.
    pub fn spec(&self, id: ParamId) -> &ParamSpec {
        &self.specs[id.0]
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<&ParamSpec> {
        self.by_name.get(name).map(|&i| &self.specs[i])
    }

    /// A buffer of initial values drawn from `rng`, tensor by tensor.
    ///
    /// ```
    /// use rand::SeedableRng;
    /// use setwise_engine::{Init, ParamLayout};
    ///
    /// let mut layout = ParamLayout::default();
    /// layout.add("weight", &[2, 3], Init::Uniform(0.5));
    /// let values: Vec<f32> = layout.init(&mut rand_pcg::Pcg64Mcg::seed_from_u64(7));
    /// assert_eq!(values.len(), 6);
    /// assert!(values.iter().all(|v| v.abs() < 0.5));
    /// ```
    pub fn init<T: Real>(&self, rng: &mut impl Rng) -> Vec<T> {
        let mut values = vec![T::ZERO; self.len];
        for spec in &self.specs {
            for value in &mut values[spec.range()] {
                *value = match spec.init {
                    Init::Zeros => T::ZERO,
                    Init::Ones => T::ONE,
                    Init::Uniform(bound) => T::from_f64((rng.random::<f64>() * 2.0 - 1.0) * bound),
                    Init::Normal(sd) => T::from_f64(standard_normal(rng) * sd),
                };
            }
        }
        values
    }
}

/// One standard normal deviate (Box–Muller; used at start-up only).
fn standard_normal(rng: &mut impl Rng) -> f64 {
    let u = 1.0 - rng.random::<f64>();
    let angle = std::f64::consts::TAU * rng.random::<f64>();
    (-2.0 * u.ln()).sqrt() * angle.cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_averages_follow_trained_tensors_in_any_order_of_addition() {
        let mut layout = ParamLayout::default();
        layout.add("a", &[2], Init::Ones);
        let mean = layout.add_running("mean", &[3], Init::Zeros);
        layout.add_running("variance", &[3], Init::Ones);
        let b = layout.add("b", &[4], Init::Uniform(1.0));
        assert_eq!((layout.trained(), layout.len()), (6, 12));
        assert_eq!((layout.spec(b).range(), layout.spec(mean).range()), (2..6, 6..9));
        let values: Vec<f64> = layout.init(&mut rand_pcg::Pcg64Mcg::new(1));
        assert_eq!((&values[..2], &values[6..]), (&[1.0; 2][..], &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0][..]));
        assert!(values[2..6].iter().all(|v| *v != 0.0));
        assert_eq!(layout.add_running("mean", &[3], Init::Zeros), mean);
    }
}
