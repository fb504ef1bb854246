//! Compiled modules, kernels, launches and TMA descriptors.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::super::kernel_tasks::TensorMap;
use super::{Device, Stream, failed};
use crate::error::Error;

/// A loaded module of compiled kernels.
pub(in super::super) struct Module {
    device: Arc<Device>,
    raw: sys::CUmodule,
}

// SAFETY: the driver allows module handles on any thread that has made the context current (see `Device`).
unsafe impl Send for Module {}

/// A kernel of a module; valid as long as the module is loaded.
#[derive(Clone, Copy)]
pub(in super::super) struct Function {
    raw: sys::CUfunction,
    /// Whether it may start before its predecessor ends (programmatic dependent launch). All kernels wait themselves
    /// (`common.cu`).
    pub programmatic_launch: bool,
}

// SAFETY: a plain handle; the driver allows it on any thread (see `Device`).
unsafe impl Send for Function {}

impl Module {
    /// Loads a compiled image.
    ///
    /// # Safety
    /// `image` must be a complete cubin: the driver reads as far as the image's headers say.
    pub unsafe fn load(device: &Arc<Device>, image: &[u8]) -> Result<Self, Error> {
        device.bind()?;
        // SAFETY: the context is current; the caller guarantees a complete image. `Drop` unloads the module once.
        let raw = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(|e| failed("loading the kernels", e))?;
        Ok(Module { device: device.clone(), raw })
    }

    /// Whether the module has a kernel of this name.
    pub fn has(&self, name: &str) -> bool {
        // SAFETY: the module is loaded, and the name is a terminated string.
        CString::new(name).is_ok_and(|text| unsafe { result::module::get_function(self.raw, text) }.is_ok())
    }

    /// A kernel that may use `shared` bytes of dynamic shared memory.
    pub fn function(&self, name: &str, shared: usize) -> Result<Function, Error> {
        let text = CString::new(name).expect("kernel names have no zero bytes");
        let max_bytes = self.device.shared_memory;
        if shared > max_bytes {
            let wanted =
                format!("the kernel {name} needs {shared} bytes of shared memory, a block of this GPU has {max_bytes}");
            return Err(Error::Device(format!("{wanted}; lower the model's widths or use more heads")));
        }
        // SAFETY: the module is loaded, the name is a terminated string, and `f` is the handle just returned.
        unsafe {
            let f = result::module::get_function(self.raw, text).map_err(|e| failed(name, e))?;
            // More than 48 KB, static shared memory included, needs an explicit opt-in.
            if shared > 0 {
                use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as DYNAMIC;
                // A kernel is launched with different sizes; the maximum counts.
                let current = result::function::get_function_attribute(f, DYNAMIC).map_err(|e| failed(name, e))?;
                let size = current.max(shared as i32);
                result::function::set_function_attribute(f, DYNAMIC, size).map_err(|e| failed(name, e))?;
            }
            Ok(Function { raw: f, programmatic_launch: self.device.capability.0 >= 9 })
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: `load` loaded the module, which is unloaded once; owners drop their streams first.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// The geometry of a launch: grid, threads of a block, bytes of dynamic shared memory, and the shape of a cluster along
/// the grid's first two dimensions.
#[derive(Clone, Copy)]
pub(in super::super) struct Blocks {
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared: u32,
    pub cluster: [u32; 2],
}

impl Blocks {
    /// Without clusters and dynamic shared memory.
    pub fn plain(grid: [u32; 3], threads: u32) -> Self {
        Blocks { grid, threads, shared: 0, cluster: [1, 1] }
    }

    /// The driver's launch configuration; `attributes` is its storage and must outlive it.
    fn config(
        &self,
        stream: sys::CUstream,
        programmatic_launch: bool,
        attributes: &mut Vec<sys::CUlaunchAttribute>,
    ) -> sys::CUlaunchConfig {
        use sys::CUlaunchAttributeID as Id;
        let mut push = |id, value| attributes.push(sys::CUlaunchAttribute { id, pad: [0; 4], value });
        if programmatic_launch {
            let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            push(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value);
        }
        if self.cluster != [1, 1] {
            let [x, y] = self.cluster;
            let size = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z: 1 };
            push(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, sys::CUlaunchAttributeValue { clusterDim: size });
        }
        sys::CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: if attributes.is_empty() { std::ptr::null_mut() } else { attributes.as_mut_ptr() },
            numAttrs: attributes.len() as u32,
        }
    }
}

/// The number of clusters of `cluster` blocks along the grid's second dimension that the GPU runs at once; zero if the
/// query fails.
pub(in super::super) fn active_clusters(f: Function, threads: u32, shared: usize, cluster: usize) -> usize {
    let cluster = cluster as u32;
    let blocks = Blocks { grid: [1, cluster, 1], threads, shared: shared as u32, cluster: [1, cluster] };
    let mut attributes = Vec::new();
    let config = blocks.config(std::ptr::null_mut(), false, &mut attributes);
    let mut count = 0;
    // SAFETY: `f` comes from a loaded module; `attributes` outlives the call.
    let status = unsafe { sys::cuOccupancyMaxActiveClusters(&mut count, f.raw, &config) };
    status.result().map_or(0, |()| usize::try_from(count).unwrap_or(0))
}

/// Enqueues a kernel. All kernels have two arguments: a task table and the shape of the batch.
///
/// # Safety
/// `tasks` must point to as many tasks of the kernel's struct as the grid indexes, and `shape` to a shape buffer. They
/// and all addresses in the tasks must stay allocated until the stream has been waited for. The kernel must be loaded.
pub(in super::super) unsafe fn launch(
    stream: &Stream,
    f: Function,
    blocks: Blocks,
    tasks: u64,
    shape: u64,
) -> Result<(), Error> {
    let (mut tasks, mut shape) = (tasks, shape);
    let mut args = [std::ptr::from_mut(&mut tasks).cast::<c_void>(), std::ptr::from_mut(&mut shape).cast()];
    let mut attributes = Vec::new();
    let config = blocks.config(stream.raw, f.programmatic_launch, &mut attributes);
    // SAFETY: every kernel has these two parameters; the caller guarantees the memory behind them. `args` and
    // `attributes` outlive the call.
    unsafe { sys::cuLaunchKernelEx(&config, f.raw, args.as_mut_ptr(), std::ptr::null_mut()) }
        .result()
        .map_err(|e| failed("launching a kernel", e))
}

/// The TMA descriptor of an f32 matrix `rows` by `cols` with leading dimension `ld`, loaded in tiles of `box_rows` rows
/// by 32 columns. Numbers are rounded to tf32, elements outside read as zero, and tiles are swizzled as in `sm90.cu`.
pub(in super::super) fn tensor_map(
    at: u64,
    rows: usize,
    cols: usize,
    ld: usize,
    box_rows: usize,
) -> Result<TensorMap, Error> {
    use sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 as TF32;
    encode_tensor_map(TF32, 4, at, [cols, rows], ld, [32, box_rows])
}

/// The same for a dense f16 matrix, 64 columns at a time.
pub(in super::super) fn f16_tensor_map(at: u64, rows: usize, cols: usize, box_rows: usize) -> Result<TensorMap, Error> {
    use sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16 as F16;
    encode_tensor_map(F16, 2, at, [cols, rows], cols, [64, box_rows])
}

/// Encodes a two-dimensional tiled tensor map of numbers of `bytes` bytes.
fn encode_tensor_map(
    kind: sys::CUtensorMapDataType,
    bytes: usize,
    at: u64,
    dims: [usize; 2],
    ld: usize,
    tile: [usize; 2],
) -> Result<TensorMap, Error> {
    use sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as ZERO;
    use sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE as PLAIN;
    use sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B as PROMOTE;
    use sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B as SWIZZLE;
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let (dims, strides) = (dims.map(|n| n as u64), [(bytes * ld) as u64]);
    let (tile, each) = (tile.map(|n| n as u32), [1, 1]);
    let address = at as *mut c_void;
    // SAFETY: the call writes only `map`; the arrays have two, one, two and two entries as rank 2 requires. The device
    // address is stored and not read.
    unsafe {
        let (d, s, t, e) = (dims.as_ptr(), strides.as_ptr(), tile.as_ptr(), each.as_ptr());
        sys::cuTensorMapEncodeTiled(&mut map, kind, 2, address, d, s, t, e, PLAIN, SWIZZLE, PROMOTE, ZERO)
    }
    .result()
    .map_err(|e| failed("no TMA descriptor could be encoded", e))?;
    Ok(TensorMap { opaque: map.opaque })
}
