//! A config with its parameters: what predicts, is saved and is loaded.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use setwise_engine::{BatchView, Cpu, Mode, ParamLayout};

use super::build::program;
use super::config::{OutputKind, ValidConfig};
use crate::{Device, Result, SetBatch};

#[cfg(feature = "cuda")]
type Gpu = setwise_engine::cuda::Cuda;
/// Builds without CUDA have no value of it.
#[cfg(not(feature = "cuda"))]
type Gpu = std::convert::Infallible;

/// A model that can answer.
pub struct Model {
    config: ValidConfig,
    /// Shared with clones until one of them changes.
    params: Arc<Vec<f32>>,
    cpu: Cpu<f32>,
    /// Text by key, kept in the model's file.
    metadata: BTreeMap<String, String>,
    gpu: Option<Gpu>,
}

impl Model {
    /// A model with fresh parameters; the same seed gives the same ones.
    pub fn new(config: ValidConfig, seed: u64) -> Self {
        let cpu = Cpu::new(program(&config, Mode::Infer, false));
        let params = cpu.program().params().init(&mut Pcg64Mcg::seed_from_u64(seed));
        Model { config, params: Arc::new(params), cpu, metadata: BTreeMap::new(), gpu: None }
    }

    /// A model with given parameters, in the layout of its config.
    ///
    /// # Panics
    /// If there are not as many as the layout has.
    pub fn with_params(config: ValidConfig, params: Vec<f32>) -> Self {
        let cpu = Cpu::new(program(&config, Mode::Infer, false));
        assert_eq!(params.len(), cpu.program().params().len(), "parameters of the config's layout");
        Model { config, params: Arc::new(params), cpu, metadata: BTreeMap::new(), gpu: None }
    }

    /// What it was made of.
    pub fn config(&self) -> &ValidConfig {
        &self.config
    }

    /// What is known of the model beside its config: text by key, such as the experiment it was trained in.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Sets the text of a key; the model's file keeps it.
    pub fn set_metadata(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.metadata.insert(key.into(), text.into());
    }

    /// Forgets all metadata.
    pub fn clear_metadata(&mut self) {
        self.metadata.clear();
    }

    /// All parameters, flat.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// All parameters, to be changed.
    pub fn params_mut(&mut self) -> &mut [f32] {
        self.params_changed();
        Arc::make_mut(&mut self.params).as_mut_slice()
    }

    /// Takes over the parameters of a model of the same config; they are not copied until one of the two changes.
    pub(super) fn adopt(&mut self, other: &Model) {
        self.params_changed();
        self.params = other.params.clone();
    }

    /// A GPU keeps parameters it has seen until it is told.
    fn params_changed(&mut self) {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            gpu.params_changed();
        }
    }

    /// Names and places of the parameters.
    pub fn layout(&self) -> &ParamLayout {
        self.cpu.program().params()
    }

    /// Lets a GPU answer from now on, or the CPU in one way or the other. Where that fails everything stays as it was.
    pub fn use_device(&mut self, device: &Device) -> Result<()> {
        let gpu = match device {
            Device::Cpu | Device::CpuAmx => None,
            #[cfg(feature = "cuda")]
            Device::Cuda { device, precision } => {
                Some(Gpu::new(device, program(&self.config, Mode::Infer, false), *precision)?)
            }
        };
        self.cpu.use_amx(matches!(device, Device::CpuAmx))?;
        self.gpu = gpu;
        Ok(())
    }

    /// Multiplies on the CPU as another model does.
    pub(super) fn compute_like(&mut self, other: &Model) -> Result<()> {
        Ok(self.cpu.use_amx(other.cpu.uses_amx())?)
    }

    /// Whether a GPU answers.
    pub(super) fn on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Answers for every example of a batch.
    pub fn predict(&mut self, batch: &SetBatch) -> Result<Prediction> {
        self.predict_view(&batch.view())
    }

    /// Answers for every example of a batch that lies elsewhere, and is not copied.
    pub fn predict_view(&mut self, view: &BatchView<f32>) -> Result<Prediction> {
        let outputs = match &mut self.gpu {
            #[cfg(feature = "cuda")]
            Some(gpu) => &gpu.predict(&self.params, view)?,
            _ => self.cpu.predict(&self.params, view)?,
        };
        let width = self.config.output_width;
        let per_element = self.config.output == OutputKind::Equivariant;
        let mut values = Vec::new();
        let mut offsets = vec![0];
        for example in 0..view.examples() {
            for (output, set) in outputs.iter().zip(&view.sets) {
                let rows =
                    if per_element { set.offsets[example]..set.offsets[example + 1] } else { example..example + 1 };
                values.extend_from_slice(&output[rows.start * width..rows.end * width]);
                offsets.push(values.len());
            }
        }
        Ok(Prediction { values, offsets, parts: outputs.len(), width, per_element })
    }
}

/// The same parameters with working memory of its own, on the CPU.
impl Clone for Model {
    fn clone(&self) -> Self {
        let mut model = Model {
            config: self.config.clone(),
            params: self.params.clone(),
            cpu: Cpu::new(program(&self.config, Mode::Infer, false)),
            metadata: self.metadata.clone(),
            gpu: None,
        };
        model.compute_like(self).expect("what one has on this machine, the other may have");
        model
    }
}

/// Answers of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    values: Vec<f32>,
    /// Where each part of each example begins.
    offsets: Vec<usize>,
    /// One, or the number of sets.
    parts: usize,
    width: usize,
    per_element: bool,
}

impl Prediction {
    /// All numbers, example by example.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Of a vector of `width` numbers for each example.
    pub fn of_examples(values: Vec<f32>, width: usize) -> Self {
        let offsets = (0..=values.len() / width).map(|i| i * width).collect();
        Prediction { values, offsets, parts: 1, width, per_element: false }
    }

    /// All vectors, to be changed.
    pub fn vectors_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.values.chunks_exact_mut(self.width)
    }

    /// The answer for one example: one vector, or one vector per element, set after set.
    pub fn example(&self, i: usize) -> &[f32] {
        &self.values[self.offsets[i * self.parts]..self.offsets[(i + 1) * self.parts]]
    }

    /// The vectors for the elements of one set of an example.
    ///
    /// # Panics
    /// Without a vector for every element there are no sets but the first.
    pub fn set(&self, i: usize, set: usize) -> &[f32] {
        assert!(set < self.parts, "a vector for every element of set {set}");
        &self.values[self.offsets[i * self.parts + set]..self.offsets[i * self.parts + set + 1]]
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        (self.offsets.len() - 1) / self.parts
    }

    /// Numbers in a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether there is a vector for every element.
    pub fn per_element(&self) -> bool {
        self.per_element
    }
}
