//! Image encoders in ONNX files.

use std::path::Path;
use std::sync::Arc;

use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;

use super::Preparation;
use crate::datasets::readers::{Image, bad};
use crate::{Error, Result};

/// A network that maps an image to features: its first output, flattened.
///
/// The only input is an image with channels first, `[1, 3, side, side]`, or last, `[1, side, side, 3]`.
pub struct Encoder {
    network: Arc<TypedRunnableModel<TypedModel>>,
    preparation: Preparation,
    channels_first: bool,
}

impl Encoder {
    /// Reads a network for images with the given preparation.
    pub fn load(path: &Path, preparation: &Preparation) -> Result<Self> {
        preparation.check()?;
        if !path.is_file() {
            return Err(Error::io(path)(std::io::ErrorKind::NotFound.into()));
        }
        let invalid = |e: TractError| bad(path, format!("is not an ONNX network that can be run: {e:#}"));
        let network = tract_onnx::onnx().model_for_path(path).map_err(invalid)?;
        let inputs = network.input_outlets().map_err(invalid)?.len();
        if inputs != 1 {
            return Err(bad(path, format!("has {inputs} inputs; an encoder has one, the image")));
        }
        let fact = network.input_fact(0).map_err(invalid)?;
        let dims: Vec<Option<i64>> = fact.shape.dims().map(|d| d.concretize().and_then(|d| d.to_i64().ok())).collect();
        let channels_first = match dims[..] {
            [_, Some(3), _, _] => true,
            [_, _, _, Some(3)] => false,
            _ => {
                return Err(bad(path, format!("its input has shape {dims:?}, expected one image with three channels")));
            }
        };
        let side = preparation.crop;
        let sides = if channels_first { &dims[2..] } else { &dims[1..3] };
        if let Some(expected) = sides.iter().flatten().find(|&&n| n != side as i64) {
            return Err(bad(path, format!("takes images of {expected} pixels, --crop is {side}")));
        }
        let shape = if channels_first { [1, 3, side, side] } else { [1, side, side, 3] };
        let ready = || -> TractResult<_> {
            let fixed = network.with_input_fact(0, InferenceFact::dt_shape(f32::datum_type(), shape))?;
            fixed.into_optimized()?.into_runnable()
        };
        Ok(Encoder { network: Arc::new(ready().map_err(invalid)?), preparation: preparation.clone(), channels_first })
    }

    /// The features of an image.
    pub fn encode(&self, image: &Image) -> Result<Vec<f32>> {
        let mut numbers = self.preparation.apply(image)?;
        let side = self.preparation.crop;
        let mut shape = [1, side, side, 3];
        if self.channels_first {
            let colour = |c: usize| numbers.iter().skip(c).step_by(3).copied().collect::<Vec<f32>>();
            numbers = [colour(0), colour(1), colour(2)].concat();
            shape = [1, 3, side, side];
        }
        let run = || -> TractResult<Vec<f32>> {
            let input = Tensor::from_shape(&shape, &numbers)?;
            let outputs = self.network.run(tvec!(input.into()))?;
            Ok(outputs[0].cast_to::<f32>()?.as_slice::<f32>()?.to_vec())
        };
        run().map_err(|e| setwise::Error::Sets(format!("the network failed: {e:#}")).into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{embed_images, images_in};
    use super::*;
    use crate::datasets::DataSet;
    use crate::datasets::readers::read_arrays;

    /// The preparation of EfficientNet-Lite0.
    fn lite() -> Preparation {
        Preparation { resize: Some(224), crop: 224, mean: [127.0 / 255.0; 3], deviation: [128.0 / 255.0; 3] }
    }

    #[test]
    fn a_file_that_is_not_a_network_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.onnx");
        assert!(Encoder::load(&path, &lite()).err().unwrap().to_string().contains("n.onnx"));
        std::fs::write(&path, [1, 2, 3]).unwrap();
        assert!(Encoder::load(&path, &lite()).err().unwrap().to_string().contains("n.onnx"));
    }

    #[test]
    fn features_of_real_images_agree_with_another_program() {
        let Some(data) = crate::datasets::real_data() else { return };
        let folder = data.of(DataSet::Flickr8k).unwrap();
        let network = folder.join("../encoders/efficientnet_lite0_features.onnx");
        let encoder = Encoder::load(&network, &lite()).unwrap();
        // Two images that test the JPEG decoder. All 200 take a minute.
        let all = std::env::var_os("SETWISE_ALL_IMAGES").is_some();
        let (first, step) = if all { (0, 1) } else { (62, 85) };
        let found = images_in(&folder.join("images_sample200")).unwrap();
        let images: Vec<_> = found.into_iter().skip(first).step_by(step).collect();
        let features = embed_images(&images, |p| encoder.encode(p), || {}).unwrap();
        assert_eq!(features.width, 1280);
        let known = read_arrays(&folder.join("image_efficientnet_lite0_f16.safetensors")).unwrap();
        let known = known["image_features"].floats();
        let list = std::fs::read_to_string(folder.join("images.txt")).unwrap();
        let mut min_cosine = 1.0f64;
        for (name, row) in features.names.iter().zip(features.rows.chunks_exact(1280)) {
            let index = list.lines().position(|l| l == name).unwrap();
            let other = &known[index * 1280..(index + 1) * 1280];
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>();
            let cosine = dot(row, other) / (dot(row, row) * dot(other, other)).sqrt();
            assert!(cosine > 0.999, "{name}: cosine {cosine}");
            min_cosine = min_cosine.min(cosine);
        }
        println!("the smallest cosine of {} images is {min_cosine}", features.names.len());
    }
}
