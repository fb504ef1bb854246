//! Model files: safetensors, one tensor per parameter, the config as JSON in the metadata.

use std::collections::BTreeMap;
use std::path::Path;

use setwise_engine::{Mode, ParamLayout};

use super::{Model, ModelConfig, program};
use crate::files::atomic::write_atomically;
use crate::files::tensors::{TensorFile, to_bytes};
use crate::{Error, Result};

/// Metadata key of the config.
const CONFIG: &str = "setwise.config";
/// Prefix of the keys of the model's own metadata.
const METADATA: &str = "setwise.metadata.";
/// Metadata key of the format, and the format this crate writes.
const FORMAT: &str = "setwise.format";
const VERSION: &str = "1";

impl Model {
    /// Writes the model; an old file is replaced only when the new one is complete.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_atomically(path, &self.to_bytes()).map_err(Error::io(path))
    }

    /// The model file as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let config: &ModelConfig = self.config();
        let config = serde_json::to_string(config).expect("a config is plain data");
        let mut metadata = BTreeMap::from([(CONFIG.to_owned(), config), (FORMAT.to_owned(), VERSION.to_owned())]);
        metadata.extend(self.metadata().iter().map(|(key, text)| (format!("{METADATA}{key}"), text.clone())));
        let specs = self.layout().specs().iter();
        to_bytes(specs.map(|s| (s.name.as_str(), s.shape.clone(), &self.params()[s.range()])), &metadata)
    }

    /// Reads a model and checks everything: the config, and that the tensors are just those of its layout, finite, of the right
    /// shapes.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        Self::from_bytes(path, &bytes)
    }

    /// The model of a file's content, with the same checks; `name` is what errors call it.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: &[u8]) -> Result<Self> {
        let path = name.as_ref();
        let bad = |reason: String| Error::ModelFile { path: path.to_owned(), reason };
        let file = TensorFile::parse(bytes).map_err(bad)?;
        let Some(config) = file.metadata.get(CONFIG) else {
            return Err(bad(format!(
                "has no {CONFIG:?} in its metadata; weights of the published PyTorch code need `setwise import`"
            )));
        };
        match file.metadata.get(FORMAT).map(String::as_str) {
            Some(VERSION) => {}
            other => {
                return Err(bad(format!("is of format {}, this version reads {VERSION:?}", other.unwrap_or("none"))));
            }
        }
        let config: ModelConfig =
            serde_json::from_str(config).map_err(|e| bad(format!("its config cannot be read: {e}")))?;
        let config = config.validate().map_err(|e| bad(e.to_string()))?;
        // The layout is names and places only: nothing is allocated for parameters the file does not hold.
        let layout = program(&config, Mode::Infer, false).params().clone();
        if let Some(s) = layout.specs().iter().find(|s| !file.tensors.contains_key(&s.name)) {
            return Err(bad(format!("tensor {:?} of shape {:?} is missing", s.name, s.shape)));
        }
        if let Some(name) = file.tensors.keys().find(|n| layout.find(n).is_none()) {
            return Err(bad(format!("tensor {name:?} does not belong to the model its config describes")));
        }
        let params = collect_params(&layout, |name| {
            let t = &file.tensors[name];
            (t.shape.clone(), t.data.as_slice())
        })
        .map_err(bad)?;
        let mut model = Model::with_params(config, params);
        for (key, text) in &file.metadata {
            if let Some(key) = key.strip_prefix(METADATA) {
                model.set_metadata(key, text);
            }
        }
        Ok(model)
    }
}

/// Copies named tensors into the flat buffer of a layout; fails where a shape differs or a number is not finite.
pub fn collect_params<'a>(
    layout: &ParamLayout,
    tensor: impl Fn(&str) -> (Vec<usize>, &'a [f32]),
) -> Result<Vec<f32>, String> {
    for spec in layout.specs() {
        let (shape, data) = tensor(&spec.name);
        if shape != spec.shape {
            return Err(format!("tensor {:?} has shape {shape:?}, the config asks for {:?}", spec.name, spec.shape));
        }
        if let Some(i) = data.iter().position(|x| !x.is_finite()) {
            return Err(format!("tensor {:?} holds {} at element {i}", spec.name, data[i]));
        }
    }
    // All tensors are there, so the buffer is no larger than what was read.
    let mut params = vec![0.0; layout.len()];
    for spec in layout.specs() {
        params[spec.range()].copy_from_slice(tensor(&spec.name).1);
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let config = ModelConfig::preset("sum-merge", 2).unwrap().with_latent(8).with_hidden(8).with_blocks(1);
        Model::new(config.validate().unwrap(), 3)
    }

    #[test]
    fn a_saved_model_is_the_same_when_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let m = model();
        m.save(&path).unwrap();
        let loaded = Model::load(&path).unwrap();
        assert_eq!(loaded.params(), m.params());
        assert_eq!(loaded.config(), m.config());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
    }

    /// Loads a changed model file and returns the error.
    fn broken(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bad.safetensors");
        std::fs::write(&path, change(model().to_bytes())).unwrap();
        let error = Model::load(&path).err().expect("an error").to_string();
        assert!(error.contains("bad.safetensors"), "{error}");
        error
    }

    /// Rewrites the header's JSON.
    fn header(bytes: Vec<u8>, edit: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
        let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
        edit(&mut json);
        let text = serde_json::to_vec(&json).unwrap();
        let padded = text.len().next_multiple_of(8);
        let mut out = (padded as u64).to_le_bytes().to_vec();
        out.extend(&text);
        out.resize(8 + padded, b' ');
        out.extend(&bytes[8 + n..]);
        out
    }

    #[test]
    fn damaged_and_hostile_files_are_refused_by_name() {
        assert!(broken(|b| b[..b.len() / 2].to_vec()).contains("safetensors"));
        assert!(broken(|_| Vec::new()).contains("safetensors"));
        assert!(broken(|_| vec![0xff; 64]).contains("safetensors"));
        assert!(
            broken(|mut b| {
                b[..8].copy_from_slice(&u64::MAX.to_le_bytes());
                b
            })
            .contains("safetensors")
        );
        let renamed = broken(|b| {
            header(b, |j| {
                let t = j.as_object_mut().unwrap().remove("decoder.0.weight").unwrap();
                j["decoder.9.weight"] = t;
            })
        });
        assert!(renamed.contains("decoder.0.weight") && renamed.contains("missing"), "{renamed}");
        let reshaped = broken(|b| header(b, |j| j["decoder.0.weight"]["shape"] = serde_json::json!([16, 8])));
        assert!(reshaped.contains("decoder.0.weight") && reshaped.contains("[16, 8]"), "{reshaped}");
        let config = |text: &str| broken(|b| header(b, |j| j["__metadata__"][CONFIG] = text.into()));
        assert!(config("{\"latent\": -1}").contains("config"));
        assert!(config("{\"sets\": 0}").contains("sets"));
        assert!(config("{\"latent\": 65536, \"hidden\": 65536}").contains("parameters"));
        assert!(config("{\"latent\": 16384, \"hidden\": 64, \"blocks\": 1, \"sharing\": \"sym\"}").contains("tensor"));
        assert!(
            broken(|b| header(b, |j| {
                j["__metadata__"].as_object_mut().unwrap().remove(CONFIG);
            }))
            .contains("setwise import")
        );
    }

    #[test]
    fn an_extra_tensor_and_a_nan_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nan.safetensors");
        let mut m = model();
        let at = m.layout().find("pool.0.seeds").unwrap().offset;
        m.params_mut()[at + 1] = f32::NAN;
        m.save(&path).unwrap();
        let error = Model::load(&path).err().unwrap().to_string();
        assert!(error.contains("pool.0.seeds") && error.contains("NaN") && error.contains("element 1"), "{error}");
        let extra = broken(|b| {
            header(b, |j| {
                j["__metadata__"][CONFIG] =
                    serde_json::to_string(&ModelConfig { outer_norm: false, ..(**model().config()).clone() })
                        .unwrap()
                        .into();
            })
        });
        assert!(extra.contains("block.0.norm.0.gain") && extra.contains("does not belong"), "{extra}");
    }
}
