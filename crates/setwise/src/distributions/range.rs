//! A closed range of integers, `[min, max]` or one number in TOML.

use rand::{Rng, RngExt};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The integers from `min` to `max`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntRange {
    /// The smallest.
    pub min: usize,
    /// The largest.
    pub max: usize,
}

impl IntRange {
    /// The range from `min` to `max`.
    pub const fn new(min: usize, max: usize) -> Self {
        IntRange { min, max }
    }

    /// Draws a uniform integer of the range.
    pub fn draw(&self, rng: &mut impl Rng) -> usize {
        rng.random_range(self.min..=self.max)
    }

    /// The integer, if the range has one.
    pub fn single(&self) -> Option<usize> {
        (self.min == self.max).then_some(self.min)
    }
}

impl Serialize for IntRange {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.single() {
            Some(n) => n.serialize(s),
            None => [self.min, self.max].serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for IntRange {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "an integer or a range [min, max]")]
        enum Written {
            One(usize),
            Two([usize; 2]),
        }
        let (min, max) = match Written::deserialize(d)? {
            Written::One(n) => (n, n),
            Written::Two([a, b]) => (a, b),
        };
        if min > max {
            return Err(serde::de::Error::custom(format!("the range [{min}, {max}] is empty")));
        }
        Ok(IntRange { min, max })
    }
}
