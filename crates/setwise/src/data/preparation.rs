//! The map from sets to inputs of a trained model, and from its outputs to labels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{RawBatch, RawSet, Scale, Targets, scale};
#[cfg(feature = "samples")]
use crate::files::{Sample, pack_samples};
use crate::models::{Model, Prediction};
use crate::sets::{Axes, Coordinates, PackedSet};
use crate::{Error, Result, SetBatch};

/// Metadata key of the preparation, which is stored as JSON.
const METADATA: &str = "preparation";

/// How sets are prepared for a model, and how its outputs are decoded.
///
/// The metadata of a model holds its preparation, so a model file can be used without its experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Preparation {
    /// The coordinates of the model's inputs.
    pub coordinates: Coordinates,
    /// The raw dimension the model was trained for, where columns are appended to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dim: Option<usize>,
    /// The scaling of rows.
    #[serde(default)]
    pub scale: Scale,
    /// The targets of the outputs.
    pub targets: Targets,
}

impl Preparation {
    /// The preparation that leaves sets and outputs as they are.
    pub fn identity() -> Self {
        Preparation { coordinates: Coordinates::RAW, dim: None, scale: Scale::None, targets: Targets::Label }
    }

    /// The preparation in a model's metadata; the identity if there is none.
    pub fn of(model: &Model) -> Result<Self> {
        Self::from_metadata(model.metadata())
    }

    /// The preparation in the metadata of a model; the identity if there is none.
    pub fn from_metadata(metadata: &BTreeMap<String, String>) -> Result<Self> {
        let Some(text) = metadata.get(METADATA) else { return Ok(Self::identity()) };
        let read: Self = serde_json::from_str(text)
            .map_err(|e| Error::Sets(format!("the model's metadata has a bad {METADATA:?}: {e}")))?;
        if read.scale == Scale::Standard {
            let reason = "columns are scaled by the data the model was trained on, which its file does not hold";
            return Err(Error::Sets(reason.to_owned()));
        }
        Ok(read)
    }

    /// Stores the preparation in a model's metadata.
    pub fn store(&self, model: &mut Model) {
        model.set_metadata(METADATA, serde_json::to_string(self).expect("a preparation is plain data"));
    }

    /// The levels of output quantiles, if outputs are quantiles.
    pub fn levels(&self) -> Option<&[f64]> {
        match &self.targets {
            Targets::Quantiles { levels, .. } => Some(levels),
            Targets::Label | Targets::ElementLabels => None,
        }
    }

    /// Whether sets and outputs stay as they are.
    pub fn is_identity(&self) -> bool {
        *self == Self::identity()
    }

    /// Fails if a sample has not as many columns as the model takes for its set.
    #[cfg(feature = "samples")]
    pub fn check_widths(&self, model: &Model, samples: &[Sample]) -> Result<()> {
        let config = model.config();
        for (k, sample) in samples.iter().enumerate() {
            let expected = match (self.dim, config.dimension_equivariant) {
                (Some(dim), _) => dim,
                (None, true) => samples[0].width,
                (None, false) => config.input_widths[k],
            };
            if sample.width != expected {
                let columns =
                    if sample.width == 1 { "1 column".to_owned() } else { format!("{} columns", sample.width) };
                let reason = format!("has {columns}, the model takes {expected} for set {}", k + 1);
                return Err(Error::Sample { path: sample.path.clone(), reason });
            }
        }
        Ok(())
    }

    /// Prepares one sample per set and packs them.
    #[cfg(feature = "samples")]
    pub fn batch(&self, samples: Vec<Sample>) -> Result<SetBatch> {
        let one_width = samples.iter().all(|s| s.width == samples[0].width);
        let one_count = samples.iter().all(|s| s.examples == samples[0].examples);
        if self.coordinates.axes == Axes::Raw || !one_width || !one_count {
            return self.scaled(pack_samples(samples)?);
        }
        let names: Vec<String> = samples.iter().map(|s| s.path.display().to_string()).collect();
        let width = samples[0].width;
        let set = |s: Sample| RawSet { offsets: (0..=s.examples).map(|i| i * s.rows).collect(), rows: s.data };
        self.mapped(samples.into_iter().map(set).collect(), width, &names)
    }

    /// Prepares ragged sets and packs them; errors call them by `names`.
    ///
    /// # Panics
    /// If sets have different numbers of examples, or a set has no name.
    pub fn pack(&self, sets: Vec<RawSet>, widths: &[usize], names: &[String]) -> Result<SetBatch> {
        if self.coordinates.axes == Axes::Raw {
            let to_f32 = |s: RawSet| (s.rows.iter().map(|&x| x as f32).collect(), s.offsets);
            let packed = sets.into_iter().map(to_f32).zip(widths);
            return self.scaled(SetBatch::new(packed.map(|((x, o), &w)| PackedSet::new(x, w, o)).collect())?);
        }
        if let Some(k) = widths.iter().position(|w| *w != widths[0]) {
            let (first, other) = (&names[0], &names[k]);
            return Err(Error::Sets(format!(
                "{first} has {} columns, {other} has {}: sets that are whitened together have the same",
                widths[0], widths[k]
            )));
        }
        self.mapped(sets, widths[0], names)
    }

    /// Scales the rows of a batch.
    fn scaled(&self, batch: SetBatch) -> Result<SetBatch> {
        if self.scale == Scale::None {
            return Ok(batch);
        }
        let scaled = |set: &PackedSet| {
            let mut rows = set.data().to_vec();
            scale(&mut rows, set.width(), self.scale, std::iter::empty());
            PackedSet::new(rows, set.width(), set.offsets().to_vec())
        };
        SetBatch::new(batch.sets().iter().map(scaled).collect())
    }

    /// Maps raw sets to the coordinates, in f64: columns may be far from zero.
    fn mapped(&self, sets: Vec<RawSet>, width: usize, names: &[String]) -> Result<SetBatch> {
        if let Some(expected) = self.dim.filter(|&d| d != width) {
            let name = &names[0];
            return Err(Error::Sets(format!("{name}: has {width} columns, the model was trained for {expected}")));
        }
        let labels = vec![0.0; sets[0].offsets.len() - 1];
        let raw = RawBatch { widths: vec![width; sets.len()], sets, labels, element_labels: Vec::new(), seed: 0 };
        let batch = raw.prepare(self.coordinates, &Targets::Label)?.sets;
        match batch.sets().iter().all(|s| s.data().iter().all(|x| x.is_finite())) {
            true => Ok(batch),
            false => Err(Error::Sets(format!(
                "numbers of {} are beyond what can be squared; rescale the columns",
                names.join(" and ")
            ))),
        }
    }

    /// Maps outputs to labels: sorted quantiles, or the mean of element labels over the first set.
    pub fn decode(&self, mut outputs: Prediction) -> Prediction {
        match &self.targets {
            Targets::Label => outputs,
            Targets::Quantiles { .. } => {
                for quantiles in outputs.vectors_mut() {
                    quantiles.iter_mut().for_each(|x| *x = self.targets.label(f64::from(*x)) as f32);
                    quantiles.sort_by(f32::total_cmp);
                }
                outputs
            }
            Targets::ElementLabels => {
                let mean = |i: usize| self.targets.decode_example(&outputs, i).value as f32;
                Prediction::of_examples((0..outputs.examples()).map(mean).collect(), 1)
            }
        }
    }
}
