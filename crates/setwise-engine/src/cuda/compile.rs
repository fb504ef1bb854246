//! Kernels compiled at start, and kept on disk by what they were compiled from.

use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cudarc::nvrtc::{result, sys};

use super::Precision;
use super::driver::{Device, Function, Module};
use crate::error::Error;

const COMMON: &str = include_str!("kernels/common.cu");
/// Everything but attention and images, in the order its parts build on each other.
const BASE: [&str; 5] = [
    include_str!("kernels/linear.cu"),
    include_str!("kernels/norm.cu"),
    include_str!("kernels/rows.cu"),
    include_str!("kernels/pair.cu"),
    include_str!("kernels/optimise.cu"),
];
const ATTENTION: &str = include_str!("kernels/attention.cu");
const IMAGES: &str = include_str!("kernels/images.cu");

/// All kernels a program needs. Attention is compiled for each width of heads on its own, those of images only for programs that have them.
pub(super) struct Kernels {
    shared_memory: usize,
    base: Module,
    attention: Vec<(usize, Module)>,
    images: Option<Module>,
}

impl Kernels {
    /// Compiles the kernels, with attention for heads of these widths and perhaps those of images, or loads them if that was done before.
    pub fn new(device: &Arc<Device>, precision: Precision, depths: &[usize], images: bool) -> Result<Self, Error> {
        let base = module(device, precision, &[&[COMMON], &BASE[..]].concat().concat())?;
        let attention = depths
            .iter()
            .map(|&depth| {
                let instance = format!("ATTENTION({depth}, {})\n", super::build::key_tile(depth));
                Ok((depth, module(device, precision, &[COMMON, ATTENTION, &instance].concat())?))
            })
            .collect::<Result<_, Error>>()?;
        let images = images.then(|| module(device, precision, &[COMMON, IMAGES].concat())).transpose()?;
        Ok(Kernels { shared_memory: device.shared_memory, base, attention, images })
    }

    /// Whether a block may have this much shared memory.
    pub fn fits(&self, bytes: usize) -> bool {
        bytes <= self.shared_memory
    }

    /// A kernel by name; those of attention end in the width of their heads, those of images begin with what they are for.
    pub fn function(&self, name: &str, shared: usize) -> Result<Function, Error> {
        if let Some(images) = self.images.as_ref().filter(|_| name.starts_with("image_")) {
            return images.function(name, shared);
        }
        let depth = name.rsplit('_').next().and_then(|d| d.parse::<usize>().ok());
        let module = self.attention.iter().find(|(d, _)| Some(*d) == depth).map_or(&self.base, |(_, m)| m);
        module.function(name, shared)
    }
}

fn module(device: &Arc<Device>, precision: Precision, source: &str) -> Result<Module, Error> {
    let (major, minor) = device.capability;
    let options = vec![
        format!("--gpu-architecture=sm_{major}{minor}"),
        format!("-DPRECISION={}", precision as u8),
        "--std=c++17".to_owned(),
    ];
    let mut hasher = DefaultHasher::new();
    (source, &options, device.driver, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
    let cached = cache_folder().map(|f| f.join(format!("kernels-{:016x}.cubin", hasher.finish())));
    if let Some(image) = cached.as_ref().and_then(|path| read_cached(path)) {
        // What cannot be loaded is made anew.
        if let Ok(module) = Module::load(device, &image) {
            return Ok(module);
        }
    }
    let image = compile(source, &options)?;
    if let Some(path) = cached {
        // A folder that cannot be written costs the next start a few seconds and nothing else.
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let _ = path.parent().map(std::fs::create_dir_all);
        let whole = [&digest(&image).to_le_bytes(), image.as_slice()].concat();
        let _ = std::fs::write(&partial, whole).and_then(|()| std::fs::rename(&partial, &path));
    }
    Module::load(device, &image)
}

/// An image from disk, if it is whole: the driver reads as far as the image says it goes, so nothing else may reach it.
fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let mut whole = std::fs::read(path).ok()?;
    let expected = u64::from_le_bytes(whole.get(..8)?.try_into().ok()?);
    whole.drain(..8);
    (digest(&whole) == expected).then_some(whole)
}

fn digest(image: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish()
}

fn cache_folder() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.map(|b| b.join("setwise"))
}

fn compile(source: &str, options: &[String]) -> Result<Vec<u8>, Error> {
    let text = CString::new(source).map_err(|_| Error::Device("the kernels hold a zero byte".into()))?;
    let name = CString::new("setwise.cu").expect("no zero byte");
    let failed =
        |what: &str, e: result::NvrtcError| Error::Device(format!("the kernels do not compile: {what}: {e:?}"));
    let program = result::create_program(&text, Some(&name)).map_err(|e| failed("start", e))?;
    // SAFETY: the program lives until it is destroyed below; buffers are as long as the compiler says.
    unsafe {
        let compiled = result::compile_program(program, options);
        if let Err(e) = compiled {
            let log = result::get_program_log(program).unwrap_or_default();
            let log: String = log.iter().map(|&c| c as u8 as char).take(4000).collect();
            let _ = result::destroy_program(program);
            return Err(failed(&log, e));
        }
        let mut size = 0;
        let sized = sys::nvrtcGetCUBINSize(program, &mut size).result();
        let mut image = vec![0u8; size];
        let read = sized.and_then(|()| sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result());
        let _ = result::destroy_program(program);
        read.map_err(|e| failed("no image", e))?;
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_image_is_not_taken_from_disk() {
        let path = std::env::temp_dir().join(format!("setwise-image-{}", std::process::id()));
        let image = vec![7u8; 100];
        let whole = [&digest(&image).to_le_bytes(), image.as_slice()].concat();
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(read_cached(&path), Some(image));
        for damaged in [&whole[..0], &whole[..5], &whole[..60]] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(read_cached(&path), None);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_cached(&path), None);
    }
}
