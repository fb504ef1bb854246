//! What a trained model expects of sets, and what its answers mean: as in the experiment it was trained in.

use super::{Model, Prediction};
use crate::data::{Drawn, DrawnSet, Scale, Targets, scale};
use crate::experiment::{Experiment, Task};
use crate::files::{Sample, batch_of};
use crate::sets::{Beside, Frame, PackedSet};
use crate::{Error, Result, SetBatch};

/// How sets are prepared for a model and its answers read.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    frame: Frame,
    /// Coordinates of a point, where the model sees more of it than these.
    coordinates: Option<usize>,
    scale: Scale,
    targets: Targets,
}

impl Preparation {
    /// That of a model that has none: sets go in and answers come out as they are.
    pub fn none() -> Self {
        Preparation { frame: Frame::Own, coordinates: None, scale: Scale::None, targets: Targets::Label }
    }

    /// That of the experiment the model was trained in; none if the model does not tell.
    pub fn of(model: &Model) -> Result<Self> {
        let Some(text) = model.experiment() else { return Ok(Self::none()) };
        let experiment = Experiment::parse(text)?;
        let scale = match &experiment.task {
            Task::AlignWords(task) => task.scale,
            Task::AlignCaptions(task) => task.scale,
            _ => Scale::None,
        };
        if scale == Scale::Standard {
            let reason = "columns are scaled by the data it was trained on, which its file does not hold";
            return Err(Error::Sets(reason.to_owned()));
        }
        let frame = experiment.task.frame(model.config());
        let coordinates = (frame.beside() != Beside::default()).then(|| experiment.task.widths()[0]);
        Ok(Preparation { frame, coordinates, scale, targets: experiment.training.loss.targets() })
    }

    /// Coordinates a point must have where a model sees more numbers of it than these.
    pub fn coordinates(&self) -> Option<usize> {
        self.coordinates
    }

    /// Levels of the quantiles an answer consists of, where it does.
    pub fn levels(&self) -> Option<&[f64]> {
        match &self.targets {
            Targets::Quantiles { levels, .. } => Some(levels),
            Targets::Label | Targets::Elements => None,
        }
    }

    /// Whether sets go in and answers come out as they are.
    pub fn is_none(&self) -> bool {
        *self == Self::none()
    }

    /// Packs one sample per set, prepared.
    pub fn batch(&self, samples: Vec<Sample>) -> Result<SetBatch> {
        let one_width = samples.iter().all(|s| s.width == samples[0].width);
        let one_count = samples.iter().all(|s| s.examples == samples[0].examples);
        if self.frame == Frame::Own || !one_width || !one_count {
            return self.scaled(batch_of(samples)?);
        }
        let names: Vec<String> = samples.iter().map(|s| s.path.display().to_string()).collect();
        let width = samples[0].width;
        let set = |s: Sample| DrawnSet { offsets: (0..=s.examples).map(|i| i * s.rows).collect(), rows: s.data };
        self.framed(samples.into_iter().map(set).collect(), width, &names)
    }

    /// Packs sets of any sizes, prepared; `names` are what messages call them.
    ///
    /// # Panics
    /// If sets have different numbers of examples, or no name.
    pub fn pack(&self, sets: Vec<DrawnSet>, widths: &[usize], names: &[String]) -> Result<SetBatch> {
        if self.frame == Frame::Own {
            let single = |s: DrawnSet| (s.rows.iter().map(|&x| x as f32).collect(), s.offsets);
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
        self.framed(sets, widths[0], names)
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
    fn framed(&self, sets: Vec<DrawnSet>, width: usize, names: &[String]) -> Result<SetBatch> {
        if let Some(expected) = self.coordinates.filter(|&c| c != width) {
            let name = &names[0];
            return Err(Error::Sets(format!("{name}: has {width} columns, the model was trained for {expected}")));
        }
        let labels = vec![0.0; sets[0].offsets.len() - 1];
        let drawn = Drawn { widths: vec![width; sets.len()], sets, labels, elements: Vec::new(), seed: 0 };
        let batch = drawn.prepare(self.frame, &Targets::Label)?.sets;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::data::compress;
    use crate::models::OutputKind;

    fn model(task: &str, loss: &str) -> Model {
        let mut model = Model::new(ModelConfig::preset("cross-only", 2).unwrap().validate().unwrap(), 1);
        let text = format!(
            "[task]\n{task}\nset-size = [10, 20]\n[model]\npreset = \"cross-only\"\n[training]\nsteps = 10\nlearning-rate = 1e-3\n{loss}"
        );
        model.set_experiment(Some(text));
        model
    }

    fn sample(name: &str, seed: usize, map: impl Fn(f64) -> f64) -> Sample {
        let data = (0..40).map(|i| map(((i * i + seed * i) % 37) as f64)).collect();
        Sample { path: name.into(), data, examples: 2, rows: 10, width: 2, names: Vec::new() }
    }

    #[test]
    fn sets_are_whitened_where_the_task_has_them_so() {
        let samples = |map: fn(f64) -> f64| vec![sample("a.npy", 1, map), sample("b.npy", 2, map)];
        let batch = |task: &str, map| Preparation::of(&model(task, "")).unwrap().batch(samples(map)).unwrap();
        let near = |a: &SetBatch, b: &SetBatch| {
            let both = |s: &SetBatch| [s.sets()[0].data(), s.sets()[1].data()].concat();
            both(a).iter().zip(both(b)).all(|(a, b)| (a - b).abs() < 1e-4)
        };
        for (task, whitened) in [
            ("kind = \"kl\"\ndim = 2", true),
            ("kind = \"kl\"\ndim = 2\nturn = true", true),
            ("kind = \"kl\"\ndim = 2\nwhiten = false", false),
            ("kind = \"mi\"\ndim = 2\nrho = [-0.9, 0.9]", false),
        ] {
            let (plain, moved) = (batch(task, |x| x), batch(task, |x| 10.0 * x + 1e6));
            assert_eq!(near(&plain, &moved), whitened, "{task}");
            assert_eq!(near(&plain, &batch_of(samples(|x| x)).unwrap()), !whitened, "{task}");
        }
    }

    #[test]
    fn own_coordinates_and_fits_stand_beside_the_whitened_ones_where_the_model_tells_them_apart() {
        for (beside, wide) in [("own = true", 4), ("fits = true", 9), ("own = true\nfits = true", 11)] {
            let text = format!("[task]\nkind = \"kl\"\ndim = 2\nset-size = 10\nturn = true\n{beside}");
            let trained = |preset: &str| {
                let mut experiment = Experiment::parse(&text).unwrap();
                experiment.set_preset(preset);
                let mut model = Model::new(experiment.clone().validate().unwrap().model().clone(), 1);
                model.set_experiment(Some(experiment.to_toml()));
                model
            };
            let batch = |model: &Model, width: usize, examples: usize| {
                let narrow = |name, seed| {
                    let all = sample(name, seed, |x| x);
                    let data = all.data[..20 * examples].to_vec();
                    Sample { width, rows: 20 / width, examples, data, ..all }
                };
                Preparation::of(model).unwrap().batch(vec![narrow("a.npy", 1), narrow("b.npy", 2)])
            };
            let mut model = trained("cross-only");
            let seen = batch(&model, 2, 2).unwrap();
            assert_eq!(seen.sets()[0].width(), wide);
            assert!(!beside.contains("own") || seen.sets()[0].data()[2..4] == [0.0, 2.0]);
            // An example alone is seen as it is beside others.
            assert_eq!(batch(&model, 2, 1).unwrap().sets()[1].data(), seen.sets()[1].example(0));
            assert_eq!(model.predict(&seen).unwrap().examples(), 2);
            let error = batch(&model, 1, 2).unwrap_err().to_string();
            assert_eq!(error, "a.npy: has 1 columns, the model was trained for 2");
            let mut of_any_dimension = trained("multi-set-transformer-equi");
            for width in [1, 2] {
                let alone = batch(&of_any_dimension, width, 2).unwrap();
                assert_eq!(alone.sets()[0].width(), width);
                assert_eq!(of_any_dimension.predict(&alone).unwrap().examples(), 2);
            }
        }
    }

    #[test]
    fn quantiles_are_those_of_the_label_in_order() {
        let loss = "loss = { quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } }";
        let of = Preparation::of(&model("kind = \"kl\"\ndim = 2", loss)).unwrap();
        assert_eq!(of.levels(), Some(&[0.05, 0.5, 0.95][..]));
        let answers = [2.0, 1.0, 4.0].map(|kl| compress(kl, 1.0) as f32);
        let answer = of.read(Prediction::of_examples(answers.to_vec(), 3));
        assert!(answer.example(0).iter().zip([1.0, 2.0, 4.0]).all(|(a, b)| (a - b).abs() < 1e-5), "{answer:?}");
    }

    #[test]
    fn of_labels_of_elements_the_mean_over_the_first_set_is_the_answer() {
        let of = Preparation::of(&model("kind = \"kl\"\ndim = 2", "loss = { elements = { weight = 1.0 } }")).unwrap();
        let config = ModelConfig::preset("cross-only", 2).unwrap().with_output(OutputKind::Equivariant);
        let mut per_element = Model::new(config.validate().unwrap(), 1);
        let found =
            per_element.predict(&of.batch(vec![sample("a", 1, |x| x), sample("b", 2, |x| x)]).unwrap()).unwrap();
        let means: Vec<f32> = (0..2).map(|i| found.set(i, 0).iter().sum::<f32>() / 10.0).collect();
        let read = of.read(found);
        assert_eq!((read.examples(), read.width(), read.per_element()), (2, 1, false));
        assert!(read.values().iter().zip(means).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn models_that_do_not_tell_take_sets_as_they_are() {
        let model = Model::new(ModelConfig::preset("cross-only", 2).unwrap().validate().unwrap(), 1);
        assert_eq!(Preparation::of(&model).unwrap(), Preparation::none());
    }
}
