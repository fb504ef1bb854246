//! The coordinates of a model's input sets.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::mixture_features;

/// The axes of an example's coordinates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axes {
    /// The axes of the data.
    Raw,
    /// All sets whitened together ([`Whitening`](super::Whitening)).
    #[default]
    Whitened,
    /// Axes of two sets that no affine map of the data changes ([`Canonical`](super::Canonical)).
    Canonical,
}

/// The columns appended to the coordinates of every point; a list of names in TOML and JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Append {
    /// `raw`: the coordinates of the data.
    pub raw: bool,
    /// `mixture-log-densities`: log densities of Gaussian mixtures fitted to each of two sets, in seven columns.
    pub mixture_log_densities: bool,
}

/// The columns appended to the coordinates of every point: a list of these names.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Appended {
    /// The coordinates of the data.
    Raw,
    /// Log densities of Gaussian mixtures fitted to each of two sets, in seven columns.
    MixtureLogDensities,
}

impl Append {
    /// Whether nothing is appended.
    pub fn is_empty(&self) -> bool {
        *self == Append::default()
    }
}

impl Serialize for Append {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let all = [(self.raw, Appended::Raw), (self.mixture_log_densities, Appended::MixtureLogDensities)];
        s.collect_seq(all.into_iter().filter(|a| a.0).map(|a| a.1))
    }
}

impl<'de> Deserialize<'de> for Append {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let list = Vec::<Appended>::deserialize(d)?;
        let has = |entry| list.contains(&entry);
        Ok(Append { raw: has(Appended::Raw), mixture_log_densities: has(Appended::MixtureLogDensities) })
    }
}

/// Axes and appended columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Coordinates {
    /// The axes.
    pub axes: Axes,
    /// The columns appended. Nothing is appended to raw axes.
    #[serde(default, skip_serializing_if = "Append::is_empty")]
    pub append: Append,
}

impl Coordinates {
    /// The coordinates of the data, unchanged.
    pub const RAW: Coordinates = Coordinates::new(Axes::Raw);

    /// Coordinates along these axes, with nothing appended.
    pub const fn new(axes: Axes) -> Self {
        Coordinates { axes, append: Append { raw: false, mixture_log_densities: false } }
    }

    /// The width of a row that has `dim` raw coordinates.
    pub fn width(self, dim: usize) -> usize {
        let Append { raw, mixture_log_densities } = self.append;
        dim + if raw { dim } else { 0 } + if mixture_log_densities { mixture_features::COLUMNS } else { 0 }
    }
}
