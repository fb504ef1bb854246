//! A thin, checked layer over the CUDA driver. Every object is released when dropped.
//!
//! * This file: [`Device`], a GPU and its primary context.
//! * `memory`: device memory, pinned host memory and the copies between them.
//! * `stream`: streams, captured graphs and events.
//! * `launch`: compiled modules, kernels, launches and TMA descriptors.

mod launch;
mod memory;
mod stream;

pub(super) use launch::{Blocks, Function, Module, active_clusters, f16_tensor_map, launch, tensor_map};
pub(super) use memory::{Memory, Pinned, copy, download, upload, zero};
pub(super) use stream::{Event, Graph, Stream};

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::error::Error;

/// The error of a failed driver call, with the text of the driver.
fn failed(what: &str, e: result::DriverError) -> Error {
    let text = e.error_string().ok().map(|s| s.to_string_lossy().into_owned());
    Error::Device(format!("{what}: {}", text.unwrap_or_else(|| format!("{e:?}"))))
}

/// A GPU and its primary context.
#[derive(Debug)]
pub struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Name, as the driver reports it.
    pub name: String,
    /// Version of the driver, as CUDA counts: 13000 is 13.0.
    pub driver: i32,
    /// Compute capability, such as (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Maximal bytes of shared memory of a block.
    pub shared_memory: usize,
}

// SAFETY: the driver allows its handles on any thread that has made the context current. Every method here does so.
unsafe impl Send for Device {}
// SAFETY: as for `Send`; the driver's calls are thread-safe, and no method changes the struct.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a GPU, or returns an error that names the missing driver, library or capability.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        // SAFETY: loads libcuda, whose initialisers have no preconditions.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Device(
                "the driver's library (libcuda.so.1) was not found: install NVIDIA's driver, or use --device cpu"
                    .into(),
            ));
        }
        // SAFETY: loads libnvrtc, whose initialisers have no preconditions.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            return Err(Error::Device(
                "the run-time compiler (libnvrtc) was not found: install the CUDA toolkit's NVRTC, or use --device cpu"
                    .into(),
            ));
        }
        result::init().map_err(|e| failed("starting the driver (does this machine have a GPU?)", e))?;
        let count = result::device::get_count().map_err(|e| failed("counting GPUs", e))?;
        if ordinal >= count as usize {
            return Err(Error::Device(format!("there is no GPU {ordinal}: {count} found; choose another device")));
        }
        // SAFETY: `init` has succeeded and `ordinal` is below the device count, so the handle is valid for all queries.
        // The out-pointer of the version lives on this stack. `Drop` releases the primary context once.
        unsafe {
            let device = result::device::get(ordinal as i32).map_err(|e| failed("opening the GPU", e))?;
            let attribute = |a| result::device::get_attribute(device, a).map_err(|e| failed("querying the GPU", e));
            use sys::CUdevice_attribute as A;
            let capability = (
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            );
            if capability.0 < 8 {
                let (a, b) = capability;
                return Err(Error::Device(format!(
                    "the GPU has compute capability {a}.{b}; 8.0 or higher is needed, or use --device cpu"
                )));
            }
            let multiprocessors = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
            let shared_memory = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
            let name = result::device::get_name(device).map_err(|e| failed("querying the name of the GPU", e))?;
            let mut driver = 0;
            sys::cuDriverGetVersion(&mut driver)
                .result()
                .map_err(|e| failed("querying the version of the driver", e))?;
            let context = result::primary_ctx::retain(device).map_err(|e| failed("creating a context", e))?;
            let this = Device { device, context, name, driver, capability, multiprocessors, shared_memory };
            this.bind()?;
            Ok(Arc::new(this))
        }
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> Result<(), Error> {
        // SAFETY: `open` retained the primary context, and only `Drop` releases it.
        unsafe { result::ctx::set_current(self.context) }.map_err(|e| failed("using the context", e))
    }

    /// Free and total bytes of device memory.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.bind()?;
        result::mem_get_info().map_err(|e| failed("querying device memory", e))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: `open` retained the context exactly once. All other objects hold an `Arc` to this device.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
