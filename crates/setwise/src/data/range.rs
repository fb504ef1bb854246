//! A range of whole numbers, written `[least, most]` or as one number in experiment files.

use rand::{Rng, RngExt};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whole numbers from `least` to `most`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The smallest.
    pub least: usize,
    /// The largest.
    pub most: usize,
}

impl Span {
    /// From `least` to `most`.
    pub const fn new(least: usize, most: usize) -> Self {
        Span { least, most }
    }

    /// One of them, each as likely as the others.
    pub fn draw(&self, rng: &mut impl Rng) -> usize {
        rng.random_range(self.least..=self.most)
    }

    /// The number in it, if it is only one.
    pub fn single(&self) -> Option<usize> {
        (self.least == self.most).then_some(self.least)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.single() {
            Some(n) => n.serialize(s),
            None => [self.least, self.most].serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a whole number, or a range [least, most]")]
        enum Written {
            One(usize),
            Two([usize; 2]),
        }
        let (least, most) = match Written::deserialize(d)? {
            Written::One(n) => (n, n),
            Written::Two([a, b]) => (a, b),
        };
        if least > most {
            return Err(serde::de::Error::custom(format!("the range [{least}, {most}] is empty")));
        }
        Ok(Span { least, most })
    }
}
