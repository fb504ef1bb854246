//! Device memory, pinned host memory and the copies between them.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use rayon::prelude::*;

use super::super::kernel_tasks::PlainData;
use super::{Device, Stream, failed};
use crate::error::Error;

/// An allocation of device memory, freed when dropped.
pub(in super::super) struct Memory {
    device: Arc<Device>,
    pub ptr: u64,
    pub bytes: usize,
}

// SAFETY: holds a device address and an `Arc<Device>`; the driver allows both on any thread (see `Device`).
unsafe impl Send for Memory {}

impl Memory {
    /// Allocates and zeroes at least `bytes` bytes; `what` names them in the error of a full device.
    pub fn new(device: &Arc<Device>, bytes: usize, what: &'static str) -> Result<Self, Error> {
        device.bind()?;
        let bytes = bytes.max(256);
        // SAFETY: the context is current and the size is not zero. `Drop` frees the address once.
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
        // SAFETY: the range is exactly this allocation.
        unsafe { result::memset_d8_sync(self.ptr, byte, self.bytes) }
            .map_err(|e| failed("filling device memory", e))?;
        sync_default_stream()
    }

    /// Copies from the host to a byte offset.
    pub fn write<T: PlainData>(&self, offset: usize, data: &[T]) -> Result<(), Error> {
        assert!(offset + size_of_val(data) <= self.bytes, "a copy beyond the allocation");
        self.device.bind()?;
        // SAFETY: the assertion keeps the destination within the allocation; `data` has no padding bytes.
        unsafe { result::memcpy_htod_sync(self.ptr + offset as u64, data) }
            .map_err(|e| failed("copying to the GPU", e))?;
        sync_default_stream()
    }

    /// Copies to the host from a byte offset.
    pub fn read<T: PlainData>(&self, offset: usize, data: &mut [T]) -> Result<(), Error> {
        assert!(offset + size_of_val(data) <= self.bytes, "a copy beyond the allocation");
        self.device.bind()?;
        // SAFETY: the assertion keeps the source within the allocation; any bits are a valid `T`.
        unsafe { result::memcpy_dtoh_sync(data, self.ptr + offset as u64) }
            .map_err(|e| failed("copying from the GPU", e))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: `new` allocated the address. Owners drop their streams first, which wait for all work.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// Waits for the default stream. Synchronous copies may end after their call, and non-blocking streams do not wait
/// for them.
fn sync_default_stream() -> Result<(), Error> {
    // SAFETY: a null handle is the default stream of the current context.
    unsafe { result::stream::synchronize(std::ptr::null_mut()) }.map_err(|e| failed("copying to the GPU", e))
}

/// Numbers that a thread copies from or to pinned memory at a time.
const CHUNK: usize = 1 << 16;

/// Page-locked host memory, which the GPU copies asynchronously.
pub(in super::super) struct Pinned {
    device: Arc<Device>,
    ptr: *mut c_void,
    pub bytes: usize,
}

// SAFETY: owns its allocation exclusively; the pointer is never shared.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates and zeroes `bytes` bytes.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, Error> {
        device.bind()?;
        // SAFETY: the context is current. The allocation has `bytes` bytes and is zeroed before any read; `Drop` frees
        // it.
        unsafe {
            let ptr = result::malloc_host(bytes, 0).map_err(|e| failed("allocating pinned memory", e))?;
            std::ptr::write_bytes(ptr.cast::<u8>(), 0, bytes);
            Ok(Pinned { device: device.clone(), ptr, bytes })
        }
    }

    /// Writes numbers at a byte offset that is a multiple of their alignment.
    pub fn write<T: PlainData>(&mut self, offset: usize, data: &[T]) {
        assert!(offset + size_of_val(data) <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the assertion keeps the range within the allocation and aligned; `&mut self` excludes other
        // references.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.ptr.cast::<u8>().add(offset).cast(), data.len()) };
    }

    /// The same on all threads: one thread copies a batch of images hardly faster than the GPU processes it.
    pub fn write_parallel(&mut self, offset: usize, data: &[f32]) {
        let bytes = &mut self.slice_mut(offset + size_of_val(data))[offset..];
        bytes.par_chunks_mut(4 * CHUNK).zip(data.par_chunks(CHUNK)).for_each(|(to, from)| {
            // SAFETY: `zip` pairs chunks of equal bytes. `data` is a separate slice, so the ranges do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), to.len()) };
        });
    }

    /// Copies numbers from a byte offset, on all threads.
    pub fn read_parallel(&self, offset: usize, data: &mut [f32]) {
        let bytes = &self.slice(offset + size_of_val(data))[offset..];
        data.par_chunks_mut(CHUNK).zip(bytes.par_chunks(4 * CHUNK)).for_each(|(to, from)| {
            // SAFETY: `zip` pairs chunks of equal bytes that do not overlap; any bits are a valid f32.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), from.len()) };
        });
    }

    /// Reads a value at a byte offset that is a multiple of its alignment.
    pub fn read<T: PlainData>(&self, offset: usize) -> T {
        assert!(offset + size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the assertion keeps the read within the allocation and aligned; any bits are a valid `T`. Volatile,
        // since a copy of the GPU may have filled the bytes.
        unsafe { std::ptr::read_volatile(self.ptr.cast::<u8>().add(offset).cast()) }
    }

    /// The first `len` bytes.
    pub fn slice(&self, len: usize) -> &[u8] {
        assert!(len <= self.bytes);
        // SAFETY: the assertion keeps the range within the allocation, which is initialised.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), len) }
    }

    /// The first `len` bytes, to be written.
    pub fn slice_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.bytes);
        // SAFETY: the assertion keeps the range within the allocation; `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: `new` allocated the pointer; owners wait for copies before they drop it.
            let _ = unsafe { result::free_host(self.ptr) };
        }
    }
}

/// Enqueues a copy within the device.
///
/// # Safety
/// Both ranges must lie in live allocations of the stream's device until the stream has been waited for.
pub(in super::super) unsafe fn copy(stream: &Stream, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
    // SAFETY: the caller guarantees both ranges.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.raw) }.map_err(|e| failed("a copy within the GPU", e))
}

/// Enqueues zeros for a range of device memory.
///
/// # Safety
/// The range must lie in a live allocation of the stream's device until the stream has been waited for.
pub(in super::super) unsafe fn zero(stream: &Stream, to: u64, bytes: usize) -> Result<(), Error> {
    // SAFETY: the caller guarantees the range.
    unsafe { result::memset_d8_async(to, 0, bytes, stream.raw) }.map_err(|e| failed("filling device memory", e))
}

/// Enqueues a copy of some bytes from pinned memory to the same offsets of device memory at `to`.
///
/// # Safety
/// The range at `to` must lie in a live allocation. Until the stream has been waited for, `from` must neither be
/// dropped nor changed.
pub(in super::super) unsafe fn upload(
    stream: &Stream,
    to: u64,
    from: &Pinned,
    bytes: Range<usize>,
) -> Result<(), Error> {
    let part = &from.slice(bytes.end)[bytes.start..];
    // SAFETY: the caller guarantees the destination and the lifetime of both.
    unsafe { result::memcpy_htod_async(to + bytes.start as u64, part, stream.raw) }
        .map_err(|e| failed("copying to the GPU", e))
}

/// Enqueues a copy from device memory at `from` to some bytes of pinned memory.
///
/// # Safety
/// As many bytes at `from` must lie in a live allocation. Until the stream has been waited for, `to` must neither be
/// dropped, read nor written.
pub(in super::super) unsafe fn download(
    stream: &Stream,
    to: &mut Pinned,
    bytes: Range<usize>,
    from: u64,
) -> Result<(), Error> {
    let part = &mut to.slice_mut(bytes.end)[bytes.start..];
    // SAFETY: the caller guarantees the source and the lifetime of both.
    unsafe { result::memcpy_dtoh_async(part, from, stream.raw) }.map_err(|e| failed("copying from the GPU", e))
}
