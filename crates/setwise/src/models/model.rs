//! Models: a config with its parameters, and their predictions.

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
/// Builds without CUDA have no GPU.
#[cfg(not(feature = "cuda"))]
type Gpu = std::convert::Infallible;

/// A config with its parameters, ready to predict.
pub struct Model {
    config: ValidConfig,
    /// Shared with clones, copied on write.
    params: Arc<Vec<f32>>,
    cpu: Cpu<f32>,
    /// Text by key, saved in the model's file.
    metadata: BTreeMap<String, String>,
    gpu: Option<Gpu>,
}

impl Model {
    /// A model with random initial parameters, determined by `seed`.
    pub fn new(config: ValidConfig, seed: u64) -> Self {
        let cpu = Cpu::new(program(&config, Mode::Infer, false));
        let params = cpu.program().params().init(&mut Pcg64Mcg::seed_from_u64(seed));
        Model { config, params: Arc::new(params), cpu, metadata: BTreeMap::new(), gpu: None }
    }

    /// A model with these parameters, in the layout of its config.
    ///
    /// # Panics
    /// If the number of parameters is not that of the layout.
    pub fn with_params(config: ValidConfig, params: Vec<f32>) -> Self {
        let cpu = Cpu::new(program(&config, Mode::Infer, false));
        assert_eq!(params.len(), cpu.program().params().len(), "parameters of the config's layout");
        Model { config, params: Arc::new(params), cpu, metadata: BTreeMap::new(), gpu: None }
    }

    /// The config.
    pub fn config(&self) -> &ValidConfig {
        &self.config
    }

    /// Metadata: text by key, such as the experiment that trained the model.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Sets the text of a metadata key.
    pub fn set_metadata(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.metadata.insert(key.into(), text.into());
    }

    /// Removes all metadata.
    pub(crate) fn clear_metadata(&mut self) {
        self.metadata.clear();
    }

    /// All parameters, in the order of the layout.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// All parameters, mutable.
    pub fn params_mut(&mut self) -> &mut [f32] {
        self.params_changed();
        Arc::make_mut(&mut self.params).as_mut_slice()
    }

    /// Shares the parameters of a model of the same config, copied on write.
    pub(super) fn share_params(&mut self, other: &Model) {
        self.params_changed();
        self.params = other.params.clone();
    }

    /// Invalidates the GPU's copy of the parameters.
    fn params_changed(&mut self) {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            gpu.params_changed();
        }
    }

    /// Names, shapes and offsets of the parameters.
    pub fn layout(&self) -> &ParamLayout {
        self.cpu.program().params()
    }

    /// Sets the device of predictions. The model is unchanged if this fails.
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

    /// Uses AMX if the other model does.
    pub(super) fn match_amx(&mut self, other: &Model) -> Result<()> {
        Ok(self.cpu.use_amx(other.cpu.uses_amx())?)
    }

    /// Whether a GPU predicts.
    pub(super) fn on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Predicts every example of a batch.
    pub fn predict(&mut self, batch: &SetBatch) -> Result<Prediction> {
        self.predict_view(&batch.view())
    }

    /// Predicts every example of a borrowed batch.
    pub(crate) fn predict_view(&mut self, view: &BatchView<f32>) -> Result<Prediction> {
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
        Ok(Prediction { values, offsets, outputs: outputs.len(), width, per_element })
    }
}

/// A clone shares the parameters, predicts on the CPU and has separate working memory.
impl Clone for Model {
    fn clone(&self) -> Self {
        let mut model = Model {
            config: self.config.clone(),
            params: self.params.clone(),
            cpu: Cpu::new(program(&self.config, Mode::Infer, false)),
            metadata: self.metadata.clone(),
            gpu: None,
        };
        model.match_amx(self).expect("this machine has AMX, as the model uses it");
        model
    }
}

/// Outputs of a model for a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    values: Vec<f32>,
    /// Start of each output of each example in `values`.
    offsets: Vec<usize>,
    /// Outputs of an example: one, or one for each set.
    outputs: usize,
    width: usize,
    per_element: bool,
}

impl Prediction {
    /// All values, example by example.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// A prediction of one vector of `width` numbers for each example.
    pub fn of_examples(values: Vec<f32>, width: usize) -> Self {
        let offsets = (0..=values.len() / width).map(|i| i * width).collect();
        Prediction { values, offsets, outputs: 1, width, per_element: false }
    }

    /// All vectors, mutable.
    pub(crate) fn vectors_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.values.chunks_exact_mut(self.width)
    }

    /// The output for one example: one vector, or one vector per element, set by set.
    pub fn example(&self, i: usize) -> &[f32] {
        &self.values[self.offsets[i * self.outputs]..self.offsets[(i + 1) * self.outputs]]
    }

    /// The vectors for the elements of one set of an example.
    ///
    /// # Panics
    /// If outputs are per example and `set` is not 0.
    pub fn set(&self, i: usize, set: usize) -> &[f32] {
        assert!(set < self.outputs, "outputs per element of set {set}");
        &self.values[self.offsets[i * self.outputs + set]..self.offsets[i * self.outputs + set + 1]]
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        (self.offsets.len() - 1) / self.outputs
    }

    /// Width of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether there is a vector for every element.
    pub fn per_element(&self) -> bool {
        self.per_element
    }
}
