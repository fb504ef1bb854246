//! How sets become inputs of a trained model, and how its outputs become answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{RawBatch, RawSet, Scale, Targets, scale};
use crate::files::{Sample, pack_samples};
use crate::models::{Model, Prediction};
use crate::sets::{Axes, Coordinates, PackedSet};
use crate::{Error, Result, SetBatch};

/// Key of a model's metadata that holds its preparation, as JSON.
const METADATA: &str = "preparation";

/// How sets are prepared for a model, and its outputs read.
///
/// A model keeps its preparation in its metadata, so that its file tells how to use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Preparation {
    /// The coordinates the model sees.
    pub coordinates: Coordinates,
    /// The raw dimension the model was trained for, where columns are appended to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dim: Option<usize>,
    /// The scaling of rows.
    #[serde(default)]
    pub scale: Scale,
    /// What outputs stand for.
    pub targets: Targets,
}

impl Preparation {
    /// The preparation that leaves sets and outputs as they are.
    pub fn identity() -> Self {
        Preparation { coordinates: Coordinates::RAW, dim: None, scale: Scale::None, targets: Targets::Label }
    }

    /// The preparation a model's metadata names; the identity if it names none.
    pub fn of(model: &Model) -> Result<Self> {
        Self::from_metadata(model.metadata())
    }

    /// The preparation in the metadata of a model.
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

    /// Keeps the preparation in a model's metadata.
    pub fn store(&self, model: &mut Model) {
        model.set_metadata(METADATA, serde_json::to_string(self).expect("a preparation is plain data"));
    }

    /// QuantileLevels of the quantiles an answer consists of, where it does.
    pub fn levels(&self) -> Option<&[f64]> {
        match &self.targets {
            Targets::Quantiles { levels, .. } => Some(levels),
            Targets::Label | Targets::Elements => None,
        }
    }

    /// Whether sets go in and answers come out as they are.
    pub fn is_identity(&self) -> bool {
        *self == Self::identity()
    }

    /// Packs one sample per set, prepared.
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

    /// Packs sets of any sizes, prepared; `names` are what messages call them.
    ///
    /// # Panics
    /// If sets have different numbers of examples, or no name.
    pub fn pack(&self, sets: Vec<RawSet>, widths: &[usize], names: &[String]) -> Result<SetBatch> {
        if self.coordinates.axes == Axes::Raw {
            let single = |s: RawSet| (s.rows.iter().map(|&x| x as f32).collect(), s.offsets);
            let packed = sets.into_iter().map(single).zip(widths);
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

    /// In double precision, as columns may lie far from zero.
    fn mapped(&self, sets: Vec<RawSet>, width: usize, names: &[String]) -> Result<SetBatch> {
        if let Some(expected) = self.dim.filter(|&d| d != width) {
            let name = &names[0];
            return Err(Error::Sets(format!("{name}: has {width} columns, the model was trained for {expected}")));
        }
        let labels = vec![0.0; sets[0].offsets.len() - 1];
        let raw = RawBatch { widths: vec![width; sets.len()], sets, labels, elements: Vec::new(), seed: 0 };
        let batch = raw.prepare(self.coordinates, &Targets::Label)?.sets;
        match batch.sets().iter().all(|s| s.data().iter().all(|x| x.is_finite())) {
            true => Ok(batch),
            false => Err(Error::Sets(format!(
                "numbers of {} are beyond what can be squared; rescale the columns",
                names.join(" and ")
            ))),
        }
    }

    /// Answers as labels are: quantiles in order; of labels of elements their mean over the first set.
    pub fn read(&self, mut answers: Prediction) -> Prediction {
        match &self.targets {
            Targets::Label => answers,
            Targets::Quantiles { .. } => {
                for answer in answers.vectors_mut() {
                    answer.iter_mut().for_each(|x| *x = self.targets.label(f64::from(*x)) as f32);
                    answer.sort_by(f32::total_cmp);
                }
                answers
            }
            Targets::Elements => {
                let mean = |i: usize| self.targets.read_example(&answers, i).value as f32;
                Prediction::of_examples((0..answers.examples()).map(mean).collect(), 1)
            }
        }
    }
}
