//! Compiles kernels with NVRTC at start and caches them on disk, keyed by source, options and driver.

use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::nvrtc::{result, sys};

use super::Precision;
use super::driver::{Device, Function, Module};
use crate::error::Error;
use crate::program::Op;

const COMMON: &str = include_str!("kernels/common.cu");
const LINEAR_TASKS: &str = include_str!("kernels/linear_tasks.cu");
const ATTENTION: &str = include_str!("kernels/attention.cu");
const SM90: &str = include_str!("kernels/sm90.cu");
const CLUSTERS: &str = include_str!("kernels/clusters.cu");
const PAIR_COMMON: &str = include_str!("kernels/pair_common.cu");
const MMA_NT: &str = include_str!("kernels/mma_nt.cu");

/// Modules of every program; modules compile in parallel.
const LINEAR: [&str; 4] = [COMMON, LINEAR_TASKS, MMA_NT, include_str!("kernels/linear.cu")];
const LINEAR_SHAPES: [&str; 3] = ["LINEAR_SMALL\n", "LINEAR_MEDIUM\n", "LINEAR_LARGE\n"];
const WEIGHT_GRAD: [&str; 4] = [COMMON, LINEAR_TASKS, MMA_NT, include_str!("kernels/linear_weight_grad.cu")];
const BASE: [&str; 10] = [
    COMMON,
    LINEAR_TASKS,
    include_str!("kernels/linear_narrow.cu"),
    include_str!("kernels/grad_common.cu"),
    include_str!("kernels/layer_norm.cu"),
    include_str!("kernels/row_ops.cu"),
    include_str!("kernels/pack_row_weights.cu"),
    include_str!("kernels/loss.cu"),
    include_str!("kernels/adam.cu"),
    include_str!("kernels/muon.cu"),
];
/// Prefix of generated row kernels.
const ROW_KERNEL: [&str; 3] = [COMMON, SM90, include_str!("kernels/row_kernel.cu")];
/// Modules of programs with pair networks.
const PAIR: [&str; 7] = [
    COMMON,
    MMA_NT,
    PAIR_COMMON,
    include_str!("kernels/pair.cu"),
    include_str!("kernels/pair_argmax_grad.cu"),
    include_str!("kernels/pair_sorted_grad.cu"),
    include_str!("kernels/pair_weight_grad.cu"),
];
const IMAGES: [&str; 7] = [
    COMMON,
    include_str!("kernels/convolution.cu"),
    include_str!("kernels/convolution_same.cu"),
    include_str!("kernels/convolution_small_c.cu"),
    include_str!("kernels/batch_norm.cu"),
    include_str!("kernels/batch_norm_vec.cu"),
    include_str!("kernels/max_pool.cu"),
];
/// Appended to the image kernels on sm_90.
const CONVOLUTION_SM90: [&str; 2] = [SM90, include_str!("kernels/convolution_sm90.cu")];
/// Linear maps on sm_90.
const LINEAR_SM90: [&str; 7] = [
    COMMON,
    LINEAR_TASKS,
    SM90,
    CLUSTERS,
    include_str!("kernels/epilogue.cu"),
    include_str!("kernels/linear_sm90.cu"),
    include_str!("kernels/linear_weight_grad_sm90.cu"),
];
const PAIR_SM90: [&str; 6] = [
    COMMON,
    SM90,
    PAIR_COMMON,
    include_str!("kernels/pair_max_sm90.cu"),
    include_str!("kernels/pair_max_slabs.cu"),
    include_str!("kernels/pair_max_slabs_f16.cu"),
];
const ATTENTION_SM90: [&str; 4] = [COMMON, ATTENTION, SM90, include_str!("kernels/attention_sm90.cu")];
const ATTENTION_SINGLE_BLOCK: [&str; 4] =
    [COMMON, ATTENTION, CLUSTERS, include_str!("kernels/attention_single_block.cu")];

/// All kernels of a program. Attention is a module per head width; image and pair kernels are compiled only for
/// programs that use them.
pub(super) struct Kernels {
    /// Maximal bytes of shared memory of a block.
    pub shared_memory: usize,
    /// Whether the sm_90 kernels are loaded.
    pub sm90: bool,
    /// Multiprocessors of the GPU.
    pub multiprocessors: usize,
    modules: Vec<Module>,
}

impl Kernels {
    /// Whether sm_90 kernels exist for a device and a precision.
    pub fn supports_sm90(device: &Device, precision: Precision) -> bool {
        device.capability.0 == 9 && precision == Precision::Tf32
    }

    /// Compiles or loads from the cache all kernels for head widths, operations and generated row kernels.
    pub fn new(
        device: &Arc<Device>,
        precision: Precision,
        head_depths: &[usize],
        ops: &[Op],
        row_kernels: &[&str],
    ) -> Result<Self, Error> {
        let sm90 = Self::supports_sm90(device, precision);
        let sources = sources(sm90, head_depths, ops, row_kernels);
        // Parallel runs need the same kernels: the first compiles them, the others find them on disk.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled: Vec<Result<Vec<u8>, Error>> = std::thread::scope(|scope| {
            let jobs: Vec<_> = sources.iter().map(|s| scope.spawn(|| image(device, precision, s))).collect();
            jobs.into_iter().map(|j| j.join().expect("compiling does not panic")).collect()
        });
        let modules = compiled
            .into_iter()
            // SAFETY: images come from the compiler, or from a file whose digest proves it complete.
            .map(|image| unsafe { Module::load(device, &image?) })
            .collect::<Result<_, _>>()?;
        Ok(Kernels { shared_memory: device.shared_memory, sm90, multiprocessors: device.multiprocessors, modules })
    }

    /// Whether a block may have this many bytes of shared memory.
    pub fn has_shared_memory(&self, bytes: usize) -> bool {
        bytes <= self.shared_memory
    }

    /// A kernel by name, with `shared` bytes of dynamic shared memory.
    pub fn function(&self, name: &str, shared: usize) -> Result<Function, Error> {
        let kernels = self.modules.iter().find(|m| m.has(name)).unwrap_or(&self.modules[0]);
        kernels.function(name, shared)
    }
}

/// Compiles or loads from the cache a module of kernels that belong to no program.
pub(super) fn load_module(device: &Arc<Device>, source: &str) -> Result<Module, Error> {
    let image = image(device, Precision::F32, &[COMMON, source].concat())?;
    // SAFETY: the image comes from the compiler, or from a file whose digest proves it complete.
    unsafe { Module::load(device, &image) }
}

/// The source of every module that a program needs, without repetitions.
fn sources(sm90: bool, head_depths: &[usize], ops: &[Op], row_kernels: &[&str]) -> Vec<String> {
    let mut sources = vec![BASE.concat(), WEIGHT_GRAD.concat()];
    sources.extend(LINEAR_SHAPES.map(|kernel| LINEAR.concat() + kernel));
    let pairs = ops.iter().any(|op| matches!(op, Op::Pairs(_)));
    if pairs {
        sources.push(PAIR.concat());
    }
    for &depth in head_depths {
        let tile = super::lower::key_tile(depth);
        sources.push([COMMON, ATTENTION, &format!("ATTENTION({depth}, {tile})\n")].concat());
    }
    if super::lower::has_images(ops) {
        sources.push(IMAGES.concat() + &if sm90 { CONVOLUTION_SM90.concat() } else { String::new() });
    }
    sources.extend(row_kernels.iter().map(|text| ROW_KERNEL.concat() + *text));
    if sm90 {
        sources.push(LINEAR_SM90.concat());
        if pairs {
            sources.push(PAIR_SM90.concat());
        }
        for &depth in head_depths {
            let Some((sm90, tile)) = super::lower::sm90_depth(depth) else { continue };
            sources.push(ATTENTION_SM90.concat() + &format!("ATTENTION_SM90({sm90}, {tile})\n"));
            let shapes = super::lower::single_block_shapes(depth);
            if shapes.is_empty() {
                continue;
            }
            for kind in super::lower::single_block_macros(depth, ops) {
                let kernels = shapes.iter().map(|(warps, blocks)| format!("{kind}({depth}, {warps}, {blocks})\n"));
                sources.push(ATTENTION_SINGLE_BLOCK.concat() + &kernels.collect::<String>());
            }
        }
        sources.sort_unstable();
        sources.dedup();
    }
    sources
}

/// The compiled image of a source, from the cache if possible.
fn image(device: &Device, precision: Precision, source: &str) -> Result<Vec<u8>, Error> {
    let (major, minor) = device.capability;
    // The suffix `a` enables instructions of this architecture only.
    let suffix = if major == 9 { "a" } else { "" };
    let options = vec![
        format!("--gpu-architecture=sm_{major}{minor}{suffix}"),
        format!("-DPRECISION={}", precision as u8),
        "--std=c++17".to_owned(),
        // Lambdas have no `__device__` mark.
        "--device-as-default-execution-space".to_owned(),
    ];
    let mut hasher = DefaultHasher::new();
    (source, &options, device.driver, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
    let cached = cache_folder().map(|f| f.join(format!("kernels-{:016x}.cubin", hasher.finish())));
    if let Some(image) = cached.as_ref().and_then(|path| read_cached(path)) {
        return Ok(image);
    }
    let image = compile(source, &options)?;
    if let Some(path) = cached {
        // An unwritable folder only costs the next start a few seconds.
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let _ = path.parent().map(std::fs::create_dir_all);
        let shapes = [&digest(&image).to_le_bytes(), image.as_slice()].concat();
        let _ = std::fs::write(&partial, shapes).and_then(|()| std::fs::rename(&partial, &path));
    }
    Ok(image)
}

/// An image from disk if its digest matches: the driver trusts the sizes in an image's headers.
fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let mut shapes = std::fs::read(path).ok()?;
    let expected = u64::from_le_bytes(shapes.get(..8)?.try_into().ok()?);
    shapes.drain(..8);
    (digest(&shapes) == expected).then_some(shapes)
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
    let text = CString::new(source).map_err(|_| Error::Device("the kernel source contains a zero byte".into()))?;
    let name = CString::new("setwise.cu").expect("no zero byte");
    let failed =
        |what: &str, e: result::NvrtcError| Error::Device(format!("the kernels do not compile: {what}: {e:?}"));
    let program = result::create_program(&text, Some(&name)).map_err(|e| failed("start", e))?;
    // SAFETY: `program` is valid until it is destroyed, once, on both paths. `image` has the size that NVRTC reported.
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
    fn every_kernel_begins_with_a_grid_dependency_sync() {
        let base = [&BASE[..], &LINEAR, &WEIGHT_GRAD, &PAIR];
        let sm90 = [&IMAGES[..], &CONVOLUTION_SM90, &LINEAR_SM90, &PAIR_SM90, &ATTENTION_SM90, &ATTENTION_SINGLE_BLOCK];
        let alone = [include_str!("kernels/permuted_sums.cu")];
        let all = [base.concat(), sm90.concat(), alone.to_vec()].concat().concat();
        let kernels: Vec<&str> = all.split("__global__").skip(1).collect();
        assert!(kernels.len() > 40, "{} kernels", kernels.len());
        for kernel in kernels {
            let body = kernel.split_once('{').map_or("", |(_, body)| body);
            let body = body.trim_start_matches([' ', '\n', '\\']);
            assert!(
                body.starts_with("grid_dependency_sync("),
                "a kernel begins with {}",
                &kernel[..60.min(kernel.len())]
            );
        }
    }

    #[test]
    fn a_damaged_image_is_not_loaded_from_disk() {
        let path = std::env::temp_dir().join(format!("setwise-image-{}", std::process::id()));
        let image = vec![7u8; 100];
        let shapes = [&digest(&image).to_le_bytes(), image.as_slice()].concat();
        std::fs::write(&path, &shapes).unwrap();
        assert_eq!(read_cached(&path), Some(image));
        for damaged in [&shapes[..0], &shapes[..5], &shapes[..60]] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(read_cached(&path), None);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_cached(&path), None);
    }
}
