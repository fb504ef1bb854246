//! Checkpoints: the complete state of a run, from which it resumes bit for bit.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::JoinHandle;

use rayon::prelude::*;

use setwise::Model;
use setwise::files::atomic::{sync_folder, write_partial};
use setwise::files::tensors::{TensorFile, little_endian, to_bytes};
use setwise::train::Trainer;

use super::folder::RunFolder;
use super::metrics::Window;
use crate::{Error, Result};

/// Parameters and Adam's moments.
type Buffers = [Vec<f32>; 3];

/// Tensor names of the buffers.
const TENSORS: [&str; 3] = ["params", "first", "second"];

/// The state of a run after some steps.
pub(super) struct Checkpoint {
    pub step: u64,
    /// Sums of the log since its last line.
    pub window: Window,
    /// The error of the newer checkpoint, if it is damaged and this is the one before it.
    pub newer_damaged: Option<Error>,
    /// Checksum of the names and shapes of the tensors in the buffers.
    layout: String,
    buffers: Buffers,
}

/// Values that one task copies or checks.
const CHUNK: usize = 1 << 16;

impl Checkpoint {
    /// Copies the state of a run into `buffers`.
    pub fn of(trainer: &mut Trainer, step: u64, window: Window, mut buffers: Buffers) -> Self {
        let layout = layout(trainer.model());
        let copy = |to: &mut Vec<f32>, from: &[f32]| {
            to.resize(from.len(), 0.0);
            to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| to.copy_from_slice(from));
        };
        copy(&mut buffers[0], trainer.model().params());
        copy(&mut buffers[1], &trainer.adam().first);
        copy(&mut buffers[2], &trainer.adam().second);
        Checkpoint { step, window, newer_damaged: None, layout, buffers }
    }

    /// The first non-finite value, if there is one. A run cannot resume from it.
    pub fn unusable(&self) -> Option<f32> {
        self.buffers.iter().find_map(|buffer| {
            // A finite chunk is checked without a branch per value.
            let non_finite = |chunk: &&[f32]| chunk.iter().fold(false, |any, x| any | !x.is_finite());
            let chunk = buffer.par_chunks(CHUNK).find_first(non_finite)?;
            chunk.iter().copied().find(|x| !x.is_finite())
        })
    }

    /// Writes the checkpoint. The last one becomes the previous one only after the new one is on disk.
    pub fn save(&self, folder: &RunFolder) -> Result<()> {
        let path = folder.checkpoint();
        let bytes = self.encode();
        let write = || -> std::io::Result<()> {
            let partial = write_partial(&path, &bytes)?;
            if path.exists() {
                std::fs::rename(&path, folder.previous_checkpoint())?;
            }
            std::fs::rename(partial, &path)?;
            sync_folder(&path)
        };
        write().map_err(|source| {
            let last = match Self::load(folder) {
                Ok(Some(last)) => format!("the checkpoint of step {} is intact", last.step),
                _ => "there is no earlier checkpoint".to_owned(),
            };
            Error::Checkpoint { path: path.clone(), step: self.step, source, last }
        })
    }

    fn encode(&self) -> Vec<u8> {
        let buffers = self.buffers.each_ref().map(Vec::as_slice);
        let metadata = BTreeMap::from(
            [
                ("step", self.step.to_string()),
                ("window", self.window.to_text()),
                ("layout", self.layout.clone()),
                ("checksum", checksum(buffers).to_string()),
            ]
            .map(|(key, text)| (key.to_owned(), text)),
        );
        to_bytes(TENSORS.iter().zip(buffers).map(|(name, data)| (*name, vec![data.len()], data)), &metadata)
    }

    /// Reads the last intact checkpoint of a run, if it has checkpoints.
    pub fn load(folder: &RunFolder) -> Result<Option<Self>> {
        let paths = [folder.checkpoint(), folder.previous_checkpoint()];
        let mut first_error = None;
        for path in paths.iter().filter(|p| p.exists()) {
            match read(path) {
                Ok(checkpoint) => return Ok(Some(Checkpoint { newer_damaged: first_error, ..checkpoint })),
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
        let Some(error) = first_error else { return Ok(None) };
        let reason = format!("has no intact checkpoint ({error}); --out chooses another folder for a new run");
        Err(Error::Run { path: folder.path().to_owned(), reason })
    }

    /// Restores the state of a trainer of the same model.
    pub fn restore(self, trainer: &mut Trainer, path: &Path) -> Result<()> {
        let [params, first, second] = self.buffers;
        let expected = trainer.model().params().len();
        let trained = trainer.model().layout().trained();
        if params.len() != expected || first.len() != trained {
            let counts = (params.len(), first.len());
            let reason = format!(
                "has {} parameters, {} of them trained; the experiment's model has {expected} and {trained}",
                counts.0, counts.1
            );
            return Err(Error::Run { path: path.to_owned(), reason });
        }
        if self.layout != layout(trainer.model()) {
            let reason =
                "has parameters in another order, as another version wrote it; start a new run with --out".to_owned();
            return Err(Error::Run { path: path.to_owned(), reason });
        }
        trainer.model().params_mut().copy_from_slice(&params);
        let adam = trainer.adam();
        adam.steps = self.step;
        adam.first = first;
        adam.second = second;
        Ok(())
    }
}

/// Writes checkpoints in the background, one at a time.
pub(super) struct CheckpointWriter {
    folder: RunFolder,
    /// The thread that writes the current checkpoint.
    pending: Option<JoinHandle<(Checkpoint, Result<()>)>>,
    /// Buffers of the last checkpoint, for reuse.
    buffers: Buffers,
}

impl CheckpointWriter {
    /// A writer for the checkpoints of a run.
    pub fn new(folder: RunFolder) -> Self {
        CheckpointWriter { folder, pending: None, buffers: Default::default() }
    }

    /// Takes the buffers of the last checkpoint for reuse.
    pub fn buffers(&mut self) -> Buffers {
        std::mem::take(&mut self.buffers)
    }

    /// Starts to write a checkpoint. The previous one must be finished.
    pub fn start(&mut self, state: Checkpoint) {
        assert!(self.pending.is_none(), "checkpoints are written one at a time");
        let folder = self.folder.clone();
        self.pending = Some(std::thread::spawn(move || {
            let written = state.save(&folder);
            (state, written)
        }));
    }

    /// Whether the current checkpoint is finished but not collected by [`CheckpointWriter::wait`].
    pub fn is_done(&self) -> bool {
        self.pending.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Waits for the current checkpoint. Returns its step, if there is one.
    pub fn wait(&mut self) -> Result<Option<u64>> {
        let Some(thread) = self.pending.take() else { return Ok(None) };
        match thread.join() {
            Ok((state, written)) => {
                self.buffers = state.buffers;
                written.map(|()| Some(state.step))
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        // A run that fails still finishes its last checkpoint.
        let _ = self.pending.take().map(JoinHandle::join);
    }
}

/// Checksum of the names and shapes of a model's tensors, in their order.
fn layout(model: &Model) -> String {
    let mut hasher = crc32fast::Hasher::new();
    for spec in model.layout().specs() {
        hasher.update(format!("{} {:?}\n", spec.name, spec.shape).as_bytes());
    }
    hasher.finalize().to_string()
}

fn checksum(buffers: [&[f32]; 3]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in buffers.iter().flat_map(|b| b.chunks(1 << 14)) {
        hasher.update(&little_endian(part));
    }
    hasher.finalize()
}

fn read(path: &Path) -> Result<Checkpoint> {
    let bad =
        |reason: &str| Error::Run { path: path.to_owned(), reason: format!("is not an intact checkpoint: {reason}") };
    let mut file = TensorFile::read(path)?;
    let entry = |key: &str| file.metadata.get(key).ok_or_else(|| bad(&format!("it has no {key:?}")));
    let step = entry("step")?.parse().map_err(|_| bad("its step is not a number"))?;
    let window = Window::from_text(entry("window")?).ok_or_else(|| bad("its log cannot be read"))?;
    let (sum, layout) = (entry("checksum")?.clone(), entry("layout")?.clone());
    let mut take =
        |name: &str| file.tensors.remove(name).map(|t| t.data).ok_or_else(|| bad(&format!("{name} is missing")));
    let buffers = [take(TENSORS[0])?, take(TENSORS[1])?, take(TENSORS[2])?];
    if checksum(buffers.each_ref().map(Vec::as_slice)).to_string() != sum {
        return Err(bad("its checksum does not match"));
    }
    let [params, first, second] = buffers.each_ref().map(Vec::len);
    let checkpoint = Checkpoint { step, window, newer_damaged: None, layout, buffers };
    if first != second || first > params || checkpoint.unusable().is_some() {
        return Err(bad("its sizes or values are invalid"));
    }
    Ok(checkpoint)
}

#[cfg(test)]
mod tests {
    use setwise::models::{ImageEncoder, Images};
    use setwise::train::{LossConfig, Optimizer, Training};
    use setwise::{Loss, ModelConfig, SetBatch};

    use super::*;

    fn trainer() -> Trainer {
        let config = ModelConfig::preset("pine", 1).unwrap().with_latent(4).with_hidden(4);
        Trainer::new(Model::new(config.validate().unwrap(), 1), Loss::L1)
    }

    #[test]
    fn a_damaged_checkpoint_falls_back_to_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        assert!(Checkpoint::load(&folder).unwrap().is_none());
        let mut t = trainer();
        for step in [1, 2, 3] {
            t.model().params_mut()[0] = step as f32;
            Checkpoint::of(&mut t, step, Window::default(), Default::default()).save(&folder).unwrap();
        }
        let path = folder.checkpoint();
        let good = std::fs::read(&path).unwrap();
        assert_eq!(Checkpoint::load(&folder).unwrap().unwrap().step, 3);
        for damage in 0..3 {
            let mut bytes = good.clone();
            let n = bytes.len();
            match damage {
                0 => bytes.truncate(n / 2),
                1 => bytes[n - 5] ^= 64,
                _ => bytes.clear(),
            }
            std::fs::write(&path, &bytes).unwrap();
            let last = Checkpoint::load(&folder).unwrap().unwrap();
            assert_eq!((last.step, last.buffers[0][0]), (2, 2.0));
            assert!(last.newer_damaged.is_some());
        }
        // Killed between the two renames.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Checkpoint::load(&folder).unwrap().unwrap().step, 2);
        std::fs::write(folder.previous_checkpoint(), "x").unwrap();
        assert!(Checkpoint::load(&folder).is_err());
    }

    #[test]
    fn a_run_resumed_from_checkpoints_equals_an_uninterrupted_one() {
        let images = Images::new(ImageEncoder::Mnist).with_size(5, 4, 1);
        let trainer = || {
            let config = ModelConfig::preset("single-set-rff", 1).unwrap().with_images(images).with_latent(4);
            let training = Training {
                optimizer: Optimizer::Muon { learning_rate: 0.01 },
                loss: LossConfig::Mse,
                ..Training::default()
            };
            Trainer::with_training(Model::new(config.with_hidden(4).validate().unwrap(), 1), &training, 0)
        };
        let pixels: Vec<f32> = (0..100).map(|i| (i * 7 % 13) as f32 / 13.0).collect();
        let batch = SetBatch::from_examples(20, &[vec![&pixels[..60], &pixels[60..]]]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        let (mut uninterrupted, mut resumed) = (trainer(), trainer());
        for step in 0..4 {
            uninterrupted.step(&batch, &[1.0], 1e-2).unwrap();
            resumed.step(&batch, &[1.0], 1e-2).unwrap();
            Checkpoint::of(&mut resumed, step + 1, Window::default(), Default::default()).save(&folder).unwrap();
            resumed = trainer();
            Checkpoint::load(&folder).unwrap().unwrap().restore(&mut resumed, &folder.checkpoint()).unwrap();
            assert_eq!(
                (uninterrupted.adam().steps, uninterrupted.model().params()),
                (step + 1, resumed.model().params())
            );
        }
        assert!(uninterrupted.adam().first.len() < uninterrupted.model().params().len());
    }

    #[test]
    fn errors_of_the_background_writer_are_returned_by_wait() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        let mut writer = CheckpointWriter::new(folder.clone());
        assert_eq!(writer.wait().unwrap(), None);
        writer.start(Checkpoint::of(&mut trainer(), 7, Window::default(), Default::default()));
        assert_eq!(writer.wait().unwrap(), Some(7));
        assert_eq!(Checkpoint::load(&folder).unwrap().unwrap().step, 7);
        let mut nowhere = CheckpointWriter::new(RunFolder::new(dir.path().join("missing")));
        nowhere.start(Checkpoint::of(&mut trainer(), 8, Window::default(), Default::default()));
        let error = nowhere.wait().unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("step 8"), "{error}");
        // A dropped writer finishes its checkpoint, which has no values of the one whose buffers it reuses.
        let mut later = trainer();
        later.model().params_mut().fill(0.5);
        later.adam().second.fill(0.25);
        let state = Checkpoint::of(&mut later, 9, Window::default(), writer.buffers());
        writer.start(state);
        drop(writer);
        let found = Checkpoint::load(&folder).unwrap().unwrap();
        assert_eq!(found.step, 9);
        assert_eq!(
            found.buffers,
            [later.model().params().to_vec(), later.adam().first.clone(), later.adam().second.clone()]
        );
    }

    #[test]
    fn a_non_finite_value_is_found_in_every_buffer() {
        let config = ModelConfig::preset("multi-set-transformer", 2).unwrap().validate().unwrap();
        let mut t = Trainer::new(Model::new(config, 1), Loss::L1);
        let last = t.adam().second.len() - 1;
        assert!(last > CHUNK, "several chunks are needed");
        let unusable = |t: &mut Trainer| Checkpoint::of(t, 1, Window::default(), Default::default()).unusable();
        assert_eq!(unusable(&mut t), None);
        t.adam().second[last] = f32::INFINITY;
        assert_eq!(unusable(&mut t), Some(f32::INFINITY));
        t.model().params_mut()[CHUNK] = f32::NEG_INFINITY;
        assert_eq!(unusable(&mut t), Some(f32::NEG_INFINITY));
    }

    #[test]
    fn a_checkpoint_of_another_model_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        Checkpoint::of(&mut trainer(), 1, Window::default(), Default::default()).save(&folder).unwrap();
        let config = ModelConfig::preset("single-set-rff", 1).unwrap();
        let mut other = Trainer::new(Model::new(config.validate().unwrap(), 1), Loss::L1);
        let error = Checkpoint::load(&folder).unwrap().unwrap().restore(&mut other, &folder.checkpoint()).unwrap_err();
        assert!(error.to_string().contains("parameters"), "{error}");
    }

    #[test]
    fn a_checkpoint_with_parameters_in_another_order_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        Checkpoint::of(&mut trainer(), 1, Window::default(), Default::default()).save(&folder).unwrap();
        let other = Checkpoint { layout: "0".to_owned(), ..Checkpoint::load(&folder).unwrap().unwrap() };
        let error = other.restore(&mut trainer(), &folder.checkpoint()).unwrap_err();
        assert!(error.to_string().contains("another order"), "{error}");
        Checkpoint::load(&folder).unwrap().unwrap().restore(&mut trainer(), &folder.checkpoint()).unwrap();
    }
}
