//! A thin, checked layer over the driver: context, memory, streams, events, graphs. Everything is released when dropped.

use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use rayon::prelude::*;

use super::kernel_tasks::TensorMap;
use crate::error::Error;

/// What the driver says about a failed call.
pub(super) fn failed(what: &str, e: result::DriverError) -> Error {
    let text = e.error_string().ok().map(|s| s.to_string_lossy().into_owned());
    Error::Device(format!("{what}: {}", text.unwrap_or_else(|| format!("{e:?}"))))
}

/// A GPU and its primary context.
#[derive(Debug)]
pub struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Its name.
    pub name: String,
    /// Version of the driver, as CUDA counts: 13000 is 13.0.
    pub driver: i32,
    /// Compute capability, such as (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of shared memory a block may have.
    pub shared_memory: usize,
}

// SAFETY: the driver's handles may be used from any thread that makes the context current, which every entry point here does.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

impl Device {
    /// Opens a GPU; says exactly what is missing where that cannot be done.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        // SAFETY: only asks whether the library can be loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Device(
                "the driver's library (libcuda.so.1) was not found: install NVIDIA's driver, or use --device cpu"
                    .into(),
            ));
        }
        // SAFETY: as above.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            return Err(Error::Device(
                "the run-time compiler (libnvrtc) was not found: install the CUDA toolkit's NVRTC, or use --device cpu"
                    .into(),
            ));
        }
        result::init().map_err(|e| failed("the driver does not start (is there a GPU?)", e))?;
        let count = result::device::get_count().map_err(|e| failed("the GPUs cannot be counted", e))?;
        if ordinal >= count as usize {
            return Err(Error::Device(format!("there is no GPU {ordinal}: {count} found")));
        }
        // SAFETY: plain queries of a device that exists; the primary context is released when this is dropped.
        unsafe {
            let device = result::device::get(ordinal as i32).map_err(|e| failed("the GPU cannot be opened", e))?;
            let attribute =
                |a| result::device::get_attribute(device, a).map_err(|e| failed("the GPU does not answer", e));
            use sys::CUdevice_attribute as A;
            let capability = (
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            );
            if capability.0 < 8 {
                let (a, b) = capability;
                return Err(Error::Device(format!("the GPU has compute capability {a}.{b}, at least 8.0 is needed")));
            }
            let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
            let shared_memory = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
            let name = result::device::get_name(device).map_err(|e| failed("the GPU has no name", e))?;
            let mut driver = 0;
            sys::cuDriverGetVersion(&mut driver).result().map_err(|e| failed("the driver has no version", e))?;
            let context = result::primary_ctx::retain(device).map_err(|e| failed("no context could be made", e))?;
            let this = Device { device, context, name, driver, capability, multiprocessors, shared_memory };
            this.bind()?;
            Ok(Arc::new(this))
        }
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> Result<(), Error> {
        // SAFETY: the context lives as long as this.
        unsafe { result::ctx::set_current(self.context) }.map_err(|e| failed("the context cannot be used", e))
    }

    /// Bytes of memory free and in all.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.bind()?;
        result::mem_get_info().map_err(|e| failed("memory cannot be counted", e))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Some device memory.
pub(super) struct Memory {
    device: Arc<Device>,
    pub ptr: u64,
    pub bytes: usize,
}

// SAFETY: see `Device`.
unsafe impl Send for Memory {}

impl Memory {
    pub fn new(device: &Arc<Device>, bytes: usize, what: &'static str) -> Result<Self, Error> {
        device.bind()?;
        let bytes = bytes.max(256);
        // SAFETY: freed when dropped.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(ptr) => {
                let this = Memory { device: device.clone(), ptr, bytes };
                this.fill(0)?;
                Ok(this)
            }
            Err(result::DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let free = result::mem_get_info().map_or(0, |m| m.0 as u64);
                Err(Error::DeviceMemory { what, wanted: bytes as u64, free })
            }
            Err(e) => Err(failed(what, e)),
        }
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: the whole allocation.
        unsafe { result::memset_d8_sync(self.ptr, byte, self.bytes) }.map_err(|e| failed("memory cannot be set", e))?;
        settle()
    }

    /// Copies from the host, at a byte offset.
    pub fn write<T: Copy>(&self, offset: usize, data: &[T]) -> Result<(), Error> {
        assert!(offset + size_of_val(data) <= self.bytes, "a copy within the allocation");
        self.device.bind()?;
        // SAFETY: within the allocation.
        unsafe { result::memcpy_htod_sync(self.ptr + offset as u64, data) }
            .map_err(|e| failed("a copy to the GPU", e))?;
        settle()
    }

    /// Copies to the host, from a byte offset.
    pub fn read<T: Copy>(&self, offset: usize, data: &mut [T]) -> Result<(), Error> {
        assert!(offset + size_of_val(data) <= self.bytes, "a copy within the allocation");
        self.device.bind()?;
        // SAFETY: within the allocation; any bits are a number.
        unsafe { result::memcpy_dtoh_sync(data, self.ptr + offset as u64) }
            .map_err(|e| failed("a copy from the GPU", e))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`; work on it has been waited for by the streams' owners.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// Waits for the default stream, on which plain copies end some time after the call; the streams here do not wait for it.
fn settle() -> Result<(), Error> {
    // SAFETY: the default stream always exists.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }.map_err(|e| failed("a copy to the GPU", e))
}

/// Numbers that one thread copies from or to pinned memory, at a time.
const PART: usize = 1 << 16;

/// Host memory the GPU copies from and to without help.
pub(super) struct Pinned {
    device: Arc<Device>,
    ptr: *mut c_void,
    pub bytes: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, Error> {
        device.bind()?;
        // SAFETY: freed when dropped; set to zero before anybody reads it.
        unsafe {
            let ptr = result::malloc_host(bytes, 0).map_err(|e| failed("pinned memory", e))?;
            std::ptr::write_bytes(ptr.cast::<u8>(), 0, bytes);
            Ok(Pinned { device: device.clone(), ptr, bytes })
        }
    }

    /// Writes numbers at a byte offset, which is a multiple of their size.
    pub fn write<T: Copy>(&mut self, offset: usize, data: &[T]) {
        assert!(offset + size_of_val(data) <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: within the allocation, aligned; nothing else refers to it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.ptr.cast::<u8>().add(offset).cast(), data.len()) };
    }

    /// The same on all threads: one alone copies a batch of images hardly faster than the device works through it.
    pub fn write_parallel(&mut self, offset: usize, data: &[f32]) {
        let bytes = &mut self.slice_mut(offset + size_of_val(data))[offset..];
        bytes.par_chunks_mut(4 * PART).zip(data.par_chunks(PART)).for_each(|(to, from)| {
            // SAFETY: as many bytes as the numbers have, which do not lie in pinned memory.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), to.len()) };
        });
    }

    /// Copies numbers from a byte offset, on all threads.
    pub fn read_parallel(&self, offset: usize, data: &mut [f32]) {
        let bytes = &self.slice(offset + size_of_val(data))[offset..];
        data.par_chunks_mut(PART).zip(bytes.par_chunks(4 * PART)).for_each(|(to, from)| {
            // SAFETY: as many bytes as the numbers have, which do not lie in pinned memory; any bits are a number.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), from.len()) };
        });
    }

    pub fn read<T: Copy>(&self, offset: usize) -> T {
        assert!(offset + size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: within the allocation, aligned; the copy that filled it has been waited for.
        unsafe { std::ptr::read_volatile(self.ptr.cast::<u8>().add(offset).cast()) }
    }

    pub fn slice(&self, len: usize) -> &[u8] {
        assert!(len <= self.bytes);
        // SAFETY: within the allocation.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), len) }
    }

    pub fn slice_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.bytes);
        // SAFETY: within the allocation.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`.
            let _ = unsafe { result::free_host(self.ptr) };
        }
    }
}

/// A stream of work.
pub(super) struct Stream {
    device: Arc<Device>,
    pub raw: sys::CUstream,
}

// SAFETY: see `Device`.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(device: &Arc<Device>) -> Result<Self, Error> {
        device.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(|e| failed("a stream", e))?;
        Ok(Stream { device: device.clone(), raw })
    }

    pub fn wait(&self) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: a live stream.
        unsafe { result::stream::synchronize(self.raw) }.map_err(|e| failed("the GPU's work", e))
    }

    /// Lets later work of this stream wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both live.
        unsafe { result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(|e| failed("waiting for an event", e))
    }

    /// Records what `work` puts into the stream as a graph.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        self.device.bind()?;
        // SAFETY: capture begins and ends here; the graph is destroyed when dropped.
        unsafe {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            result::stream::begin_capture(self.raw, mode).map_err(|e| failed("a graph", e))?;
            let worked = work();
            let graph = result::stream::end_capture(self.raw).map_err(|e| failed("a graph", e))?;
            worked?;
            let mut exec = std::ptr::null_mut();
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map_err(|e| failed("a graph", e))?;
            Ok(Graph { device: self.device.clone(), exec })
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`.
            let _ = unsafe { result::stream::synchronize(self.raw) };
            // SAFETY: as above.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A captured stretch of work.
pub(super) struct Graph {
    device: Arc<Device>,
    exec: sys::CUgraphExec,
}

// SAFETY: see `Device`.
unsafe impl Send for Graph {}

impl Graph {
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: both live.
        unsafe { result::graph::launch(self.exec, stream.raw) }.map_err(|e| failed("the step", e))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: instantiated by `capture`.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
    }
}

/// A place in a stream that can be waited for.
pub(super) struct Event {
    device: Arc<Device>,
    raw: sys::CUevent,
}

// SAFETY: see `Device`.
unsafe impl Send for Event {}

impl Event {
    pub fn new(device: &Arc<Device>) -> Result<Self, Error> {
        device.bind()?;
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(|e| failed("an event", e))?;
        Ok(Event { device: device.clone(), raw })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both live.
        unsafe { result::event::record(self.raw, stream.raw) }.map_err(|e| failed("an event", e))
    }

    pub fn wait(&self) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: a live event.
        unsafe { result::event::synchronize(self.raw) }.map_err(|e| failed("the GPU's work", e))
    }

    /// Milliseconds from another event to this one; both have been waited for.
    pub fn since(&self, start: &Event) -> Result<f64, Error> {
        // SAFETY: both live.
        unsafe { result::event::elapsed(start.raw, self.raw) }.map(f64::from).map_err(|e| failed("a time", e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// Compiled kernels.
pub(super) struct Module {
    device: Arc<Device>,
    raw: sys::CUmodule,
}

// SAFETY: see `Device`.
unsafe impl Send for Module {}

/// A kernel.
#[derive(Clone, Copy)]
pub(super) struct Function {
    raw: sys::CUfunction,
    /// Whether it may be started before the kernel it follows is done: all kernels wait for that themselves (`common.cu`).
    pub programmatic_launch: bool,
}

// SAFETY: a handle; see `Device`.
unsafe impl Send for Function {}

impl Module {
    pub fn load(device: &Arc<Device>, image: &[u8]) -> Result<Self, Error> {
        device.bind()?;
        // SAFETY: a whole image, as the compiler wrote it; unloaded when dropped.
        let raw = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(|e| failed("the kernels", e))?;
        Ok(Module { device: device.clone(), raw })
    }

    /// Whether a kernel of this name is here.
    pub fn has(&self, name: &str) -> bool {
        // SAFETY: only looks the name up.
        CString::new(name).is_ok_and(|text| unsafe { result::module::get_function(self.raw, text) }.is_ok())
    }

    /// A kernel that may use `shared` bytes of dynamic shared memory.
    pub fn function(&self, name: &str, shared: usize) -> Result<Function, Error> {
        let text = CString::new(name).expect("names of kernels have no zeros");
        let max_bytes = self.device.shared_memory;
        if shared > max_bytes {
            let wanted = format!("the kernel {name} wants {shared} bytes of shared memory, this GPU has {max_bytes}");
            return Err(Error::Device(format!("{wanted}; lower the model's widths or use more heads")));
        }
        // SAFETY: the module lives as long as the backend that asks.
        unsafe {
            let f = result::module::get_function(self.raw, text).map_err(|e| failed(name, e))?;
            // More than 48 KB, what a kernel has of its own included, must be asked for.
            if shared > 0 {
                use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as DYNAMIC;
                // A kernel is launched with different sizes; the largest counts.
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
            // SAFETY: loaded by `load`.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// The blocks of a launch: how many, of how many threads, with how much shared memory, and how many neighbours along the grid's first two dimensions are a
/// cluster, whose blocks run at the same time and read each other's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared: u32,
    pub cluster: [u32; 2],
}

impl Blocks {
    /// Each alone and without dynamic shared memory.
    pub fn plain_data(grid: [u32; 3], threads: u32) -> Self {
        Blocks { grid, threads, shared: 0, cluster: [1, 1] }
    }

    /// What the driver is told of them, with room for the attributes.
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

/// Clusters of so many blocks, along the grid's second dimension, that the card holds at a time; none where it cannot tell.
pub(super) fn active_clusters(f: Function, threads: u32, shared: usize, cluster: usize) -> usize {
    let cluster = cluster as u32;
    let blocks = Blocks { grid: [1, cluster, 1], threads, shared: shared as u32, cluster: [1, cluster] };
    let mut attributes = Vec::new();
    let config = blocks.config(std::ptr::null_mut(), false, &mut attributes);
    let mut count = 0;
    // SAFETY: a live kernel; the attributes live as long as the question takes.
    let answer = unsafe { sys::cuOccupancyMaxActiveClusters(&mut count, f.raw, &config) };
    answer.result().map_or(0, |()| usize::try_from(count).unwrap_or(0))
}

/// Puts a kernel into a stream. All kernels take a table of tasks and the shape of the batch.
pub(super) fn launch(stream: &Stream, f: Function, blocks: Blocks, tasks: u64, shape: u64) -> Result<(), Error> {
    let (mut tasks, mut shape) = (tasks, shape);
    let mut args = [std::ptr::from_mut(&mut tasks).cast::<c_void>(), std::ptr::from_mut(&mut shape).cast()];
    let mut attributes = Vec::new();
    let config = blocks.config(stream.raw, f.programmatic_launch, &mut attributes);
    // SAFETY: the kernel takes these two pointers; what they point to is as the kernel expects.
    unsafe { sys::cuLaunchKernelEx(&config, f.raw, args.as_mut_ptr(), std::ptr::null_mut()) }
        .result()
        .map_err(|e| failed("a kernel does not start", e))
}

/// How the card's copy engine finds tiles of `box_rows` rows and 32 columns in a matrix: `rows` by `cols`, rows at a distance of `ld` numbers. What is
/// outside reads as zero, numbers are rounded to tf32, and tiles lie as `hopper.cu` describes.
pub(super) fn tensor_map(at: u64, rows: usize, cols: usize, ld: usize, box_rows: usize) -> Result<TensorMap, Error> {
    use sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 as TF32;
    encode_tensor_map(TF32, 4, at, [cols, rows], ld, [32, box_rows])
}

/// The same of numbers of half precision, 64 columns at a time, rows following each other.
pub(super) fn f16_tensor_map(at: u64, rows: usize, cols: usize, box_rows: usize) -> Result<TensorMap, Error> {
    use sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16 as F16;
    encode_tensor_map(F16, 2, at, [cols, rows], cols, [64, box_rows])
}

/// A matrix of numbers of a kind with so many bytes, as the copy engine wants it described.
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
    let place = at as *mut c_void;
    // SAFETY: only writes the description; nothing at the address is touched.
    unsafe {
        let (d, s, t, e) = (dims.as_ptr(), strides.as_ptr(), tile.as_ptr(), each.as_ptr());
        sys::cuTensorMapEncodeTiled(&mut map, kind, 2, place, d, s, t, e, PLAIN, SWIZZLE, PROMOTE, ZERO)
    }
    .result()
    .map_err(|e| failed("a matrix cannot be encode_tensor_map to the copy engine", e))?;
    Ok(TensorMap { opaque: map.opaque })
}

/// Puts a copy within the device into a stream.
pub(super) fn copy(stream: &Stream, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
    // SAFETY: callers name their own allocations.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.raw) }.map_err(|e| failed("a copy", e))
}

/// Puts zeros into device memory.
pub(super) fn zero(stream: &Stream, to: u64, bytes: usize) -> Result<(), Error> {
    // SAFETY: callers name their own allocations.
    unsafe { result::memset_d8_async(to, 0, bytes, stream.raw) }.map_err(|e| failed("memory cannot be set", e))
}

/// Puts a copy from pinned memory into a stream.
pub(super) fn upload(stream: &Stream, to: u64, from: &Pinned, bytes: Range<usize>) -> Result<(), Error> {
    let part = &from.slice(bytes.end)[bytes.start..];
    // SAFETY: both live until the stream has been waited for.
    unsafe { result::memcpy_htod_async(to + bytes.start as u64, part, stream.raw) }
        .map_err(|e| failed("a copy to the GPU", e))
}

/// Puts a copy to some bytes of pinned memory into a stream.
pub(super) fn download(stream: &Stream, to: &mut Pinned, bytes: Range<usize>, from: u64) -> Result<(), Error> {
    let part = &mut to.slice_mut(bytes.end)[bytes.start..];
    // SAFETY: both live until the stream has been waited for.
    unsafe { result::memcpy_dtoh_async(part, from, stream.raw) }.map_err(|e| failed("a copy from the GPU", e))
}
