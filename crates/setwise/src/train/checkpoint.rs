//! Checkpoints: everything a run needs to go on as if it had never stopped.

use std::collections::BTreeMap;
use std::path::Path;

use super::folder::RunFolder;
use super::metrics::Window;
use super::trainer::Trainer;
use crate::files::atomic::{sync_folder, write_beside};
use crate::files::tensors::{TensorFile, to_bytes};
use crate::{Error, Model, Result};

/// The flat buffers, by name.
const TENSORS: [&str; 3] = ["params", "first", "second"];

/// The state of a run after some steps.
pub(super) struct Checkpoint {
    pub step: u64,
    /// What the log has gathered since its last line.
    pub window: Window,
    /// What is wrong with a newer checkpoint, if this is the one before it.
    pub newer_damaged: Option<Error>,
    /// Which tensors the buffers hold, in which order.
    layout: String,
    buffers: [Vec<f32>; 3],
}

impl Checkpoint {
    /// Writes the state of a run. The last checkpoint becomes the one before it only when the new one has been written, flushed and
    /// read back.
    pub fn save(folder: &RunFolder, trainer: &mut Trainer, step: u64, window: &Window) -> Result<()> {
        let path = folder.checkpoint();
        let bytes = encode(trainer, step, window);
        let write = || -> std::io::Result<()> {
            let partial = write_beside(&path, &bytes)?;
            if path.exists() {
                std::fs::rename(&path, folder.previous_checkpoint())?;
            }
            std::fs::rename(partial, &path)?;
            sync_folder(&path)
        };
        write().map_err(|source| {
            let last = match Self::load(folder) {
                Ok(Some(last)) => format!("the one of step {} is intact", last.step),
                _ => "there is no earlier one".to_owned(),
            };
            Error::Checkpoint { path: path.clone(), step, source, last }
        })
    }

    /// The last checkpoint of a run that is whole, if it has any.
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
        let reason =
            format!("has no checkpoint that is whole ({error}); --out chooses another folder to start again in");
        Err(Error::Run { path: folder.path().to_owned(), reason })
    }

    /// Puts the state into a trainer of the same model.
    pub fn restore(self, trainer: &mut Trainer, path: &Path) -> Result<()> {
        let [params, first, second] = self.buffers;
        let expected = trainer.model().params().len();
        let trained = trainer.model().layout().trained();
        if params.len() != expected || first.len() != trained {
            let held = (params.len(), first.len());
            let reason = format!(
                "holds {} parameters, {} of them trained, the experiment's model has {expected} and {trained}",
                held.0, held.1
            );
            return Err(Error::Run { path: path.to_owned(), reason });
        }
        if self.layout != layout(trainer.model()) {
            let reason =
                "holds the parameters in another order: it was written by another version; start again with --out"
                    .to_owned();
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

fn encode(trainer: &mut Trainer, step: u64, window: &Window) -> Vec<u8> {
    let params = trainer.model().params().to_vec();
    let layout = layout(trainer.model());
    let adam = trainer.adam();
    let buffers = [params.as_slice(), &adam.first, &adam.second];
    let metadata = BTreeMap::from([
        ("step", step.to_string()),
        ("window", window.to_text()),
        ("layout", layout),
        ("checksum", checksum(buffers).to_string()),
    ]);
    to_bytes(TENSORS.iter().zip(buffers).map(|(name, data)| (*name, vec![data.len()], data)), &metadata)
}

/// Names and shapes of a model's tensors in their order, as one number.
fn layout(model: &Model) -> String {
    let mut hasher = crc32fast::Hasher::new();
    for spec in model.layout().specs() {
        hasher.update(format!("{} {:?}\n", spec.name, spec.shape).as_bytes());
    }
    hasher.finalize().to_string()
}

fn checksum(buffers: [&[f32]; 3]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in buffers.iter().flat_map(|b| b.chunks(1024)) {
        let bytes: Vec<u8> = part.iter().flat_map(|x| x.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hasher.finalize()
}

fn read(path: &Path) -> Result<Checkpoint> {
    let bad = |reason: &str| Error::Run { path: path.to_owned(), reason: format!("is no whole checkpoint: {reason}") };
    let mut file = TensorFile::read(path)?;
    let entry = |key: &str| file.metadata.get(key).ok_or_else(|| bad(&format!("it has no {key:?}")));
    let step = entry("step")?.parse().map_err(|_| bad("its step is not a number"))?;
    let window = Window::from_text(entry("window")?).ok_or_else(|| bad("its log cannot be read"))?;
    let (sum, layout) = (entry("checksum")?.clone(), entry("layout")?.clone());
    let mut take =
        |name: &str| file.tensors.remove(name).map(|t| t.data).ok_or_else(|| bad(&format!("{name} is missing")));
    let buffers = [take(TENSORS[0])?, take(TENSORS[1])?, take(TENSORS[2])?];
    if checksum(buffers.each_ref().map(Vec::as_slice)).to_string() != sum {
        return Err(bad("its checksum does not fit"));
    }
    let [params, first, second] = buffers.each_ref().map(Vec::len);
    if first != second || first > params || buffers.iter().flatten().any(|x| !x.is_finite()) {
        return Err(bad("its numbers are not those of a run"));
    }
    Ok(Checkpoint { step, window, newer_damaged: None, layout, buffers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{ImageEncoder, Images};
    use crate::{Loss, ModelConfig, SetBatch};

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
            Checkpoint::save(&folder, &mut t, step, &Window::default()).unwrap();
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
    fn running_averages_go_on_from_a_checkpoint_as_if_it_had_never_been() {
        let images = Images::new(ImageEncoder::Mnist).with_size(5, 4, 1);
        let trainer = || {
            let config = ModelConfig::preset("single-set-rff", 1).unwrap().with_images(images).with_latent(4);
            Trainer::new(Model::new(config.with_hidden(4).validate().unwrap(), 1), Loss::Mse)
        };
        let pixels: Vec<f32> = (0..100).map(|i| (i * 7 % 13) as f32 / 13.0).collect();
        let batch = SetBatch::from_examples(20, &[vec![&pixels[..60], &pixels[60..]]]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        let (mut whole, mut cut) = (trainer(), trainer());
        for step in 0..4 {
            whole.step(&batch, &[1.0], 1e-2).unwrap();
            cut.step(&batch, &[1.0], 1e-2).unwrap();
            Checkpoint::save(&folder, &mut cut, step + 1, &Window::default()).unwrap();
            cut = trainer();
            Checkpoint::load(&folder).unwrap().unwrap().restore(&mut cut, &folder.checkpoint()).unwrap();
            assert_eq!((whole.adam().steps, whole.model().params()), (step + 1, cut.model().params()));
        }
        assert!(whole.adam().first.len() < whole.model().params().len());
    }

    #[test]
    fn a_checkpoint_of_another_model_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        Checkpoint::save(&folder, &mut trainer(), 1, &Window::default()).unwrap();
        let config = ModelConfig::preset("single-set-rff", 1).unwrap();
        let mut other = Trainer::new(Model::new(config.validate().unwrap(), 1), Loss::L1);
        let error = Checkpoint::load(&folder).unwrap().unwrap().restore(&mut other, &folder.checkpoint()).unwrap_err();
        assert!(error.to_string().contains("parameters"), "{error}");
    }

    #[test]
    fn a_checkpoint_with_parameters_in_another_order_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        Checkpoint::save(&folder, &mut trainer(), 1, &Window::default()).unwrap();
        let other = Checkpoint { layout: "0".to_owned(), ..Checkpoint::load(&folder).unwrap().unwrap() };
        let error = other.restore(&mut trainer(), &folder.checkpoint()).unwrap_err();
        assert!(error.to_string().contains("another order"), "{error}");
        Checkpoint::load(&folder).unwrap().unwrap().restore(&mut trainer(), &folder.checkpoint()).unwrap();
    }
}
