//! Model files: safetensors with one tensor per parameter and the config as JSON in the metadata.

use std::collections::BTreeMap;
use std::path::Path;

use setwise_engine::{Mode, ParamLayout};

use super::{Model, ModelConfig, program};
use crate::files::atomic::write_atomically;
use crate::files::tensors::{TensorFile, to_bytes};
use crate::{Error, Result};

/// Metadata key of the config.
const CONFIG: &str = "setwise.config";
/// Prefix of the keys of [`Model::metadata`].
const METADATA: &str = "setwise.metadata.";
/// Metadata key of the format version, and the version that is written and read.
const FORMAT: &str = "setwise.format";
const VERSION: &str = "1";

impl Model {
    /// Writes the model atomically.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_atomically(path, &self.to_bytes()).map_err(Error::io(path))
    }

    /// The content of the model file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let config: &ModelConfig = self.config();
        let config = serde_json::to_string(config).expect("a config is plain data");
        let mut metadata = BTreeMap::from([(CONFIG.to_owned(), config), (FORMAT.to_owned(), VERSION.to_owned())]);
        metadata.extend(self.metadata().iter().map(|(key, text)| (format!("{METADATA}{key}"), text.clone())));
        let specs = self.layout().specs().iter();
        to_bytes(specs.map(|s| (s.name.as_str(), s.shape.clone(), &self.params()[s.range()])), &metadata)
    }

    /// Reads a model. The config must be valid; the tensors must be those of its layout, with its shapes and finite.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        Self::from_bytes(path, &bytes)
    }

    /// Reads a model from a file's content, with the checks of [`Model::load`]. Errors call it `name`.
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
        // A layout holds names and offsets: no memory is allocated for parameters that the file lacks.
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

/// Copies named tensors into the flat buffer of a layout. Fails if a shape differs or a number is not finite.
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
    // All tensors exist with their shapes, so the buffer is not larger than the file.
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
    fn a_loaded_model_equals_the_saved_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let m = model();
        m.save(&path).unwrap();
        let loaded = Model::load(&path).unwrap();
        assert_eq!(loaded.params(), m.params());
        assert_eq!(loaded.config(), m.config());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
    }

    /// The error of loading a changed model file.
    fn error_after(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bad.safetensors");
        std::fs::write(&path, change(model().to_bytes())).unwrap();
        let error = Model::load(&path).err().expect("an error").to_string();
        assert!(error.contains("bad.safetensors"), "{error}");
        error
    }

    /// Edits the JSON of the header.
    fn edit_header(bytes: Vec<u8>, edit: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
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
        assert!(error_after(|b| b[..b.len() / 2].to_vec()).contains("safetensors"));
        assert!(error_after(|_| Vec::new()).contains("safetensors"));
        assert!(error_after(|_| vec![0xff; 64]).contains("safetensors"));
        assert!(
            error_after(|mut b| {
                b[..8].copy_from_slice(&u64::MAX.to_le_bytes());
                b
            })
            .contains("safetensors")
        );
        let renamed = error_after(|b| {
            edit_header(b, |j| {
                let t = j.as_object_mut().unwrap().remove("decoder.0.weight").unwrap();
                j["decoder.9.weight"] = t;
            })
        });
        assert!(renamed.contains("decoder.0.weight") && renamed.contains("missing"), "{renamed}");
        let reshaped = error_after(|b| edit_header(b, |j| j["decoder.0.weight"]["shape"] = serde_json::json!([16, 8])));
        assert!(reshaped.contains("decoder.0.weight") && reshaped.contains("[16, 8]"), "{reshaped}");
        let config = |text: &str| error_after(|b| edit_header(b, |j| j["__metadata__"][CONFIG] = text.into()));
        assert!(config("{\"latent\": -1}").contains("config"));
        assert!(config("{\"sets\": 0}").contains("sets"));
        assert!(config("{\"latent\": 65536, \"hidden\": 65536}").contains("parameters"));
        assert!(config("{\"latent\": 16384, \"hidden\": 64, \"blocks\": 1, \"sharing\": \"sym\"}").contains("tensor"));
        assert!(
            error_after(|b| edit_header(b, |j| {
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
        let offset = m.layout().find("pool.0.seeds").unwrap().offset;
        m.params_mut()[offset + 1] = f32::NAN;
        m.save(&path).unwrap();
        let error = Model::load(&path).err().unwrap().to_string();
        assert!(error.contains("pool.0.seeds") && error.contains("NaN") && error.contains("element 1"), "{error}");
        let extra = error_after(|b| {
            edit_header(b, |j| {
                j["__metadata__"][CONFIG] =
                    serde_json::to_string(&ModelConfig { outer_norm: false, ..(**model().config()).clone() })
                        .unwrap()
                        .into();
            })
        });
        assert!(extra.contains("block.0.norm.0.gain") && extra.contains("does not belong"), "{extra}");
    }
}
