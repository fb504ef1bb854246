//! Streams, captured graphs and events.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::{Device, failed};
use crate::error::Error;

/// A non-blocking stream; dropping it waits for its work.
pub(in super::super) struct Stream {
    device: Arc<Device>,
    pub raw: sys::CUstream,
}

// SAFETY: the driver allows stream handles on any thread that has made the context current (see `Device`).
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(device: &Arc<Device>) -> Result<Self, Error> {
        device.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|e| failed("creating a stream", e))?;
        Ok(Stream { device: device.clone(), raw })
    }

    /// Blocks until all enqueued work is done.
    pub fn wait(&self) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: `new` created the handle, and only `Drop` destroys it.
        unsafe { result::stream::synchronize(self.raw) }.map_err(|e| failed("a kernel failed", e))
    }

    /// Makes later work of this stream wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both handles are borrowed from live objects.
        unsafe { result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(|e| failed("waiting for an event", e))
    }

    /// Captures what `enqueue` puts into the stream as a graph.
    pub fn capture(&self, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        self.device.bind()?;
        // SAFETY: the stream is live, and capture ends on every path. The graph handle is destroyed once, after
        // instantiation; `Graph` owns the executable.
        unsafe {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            result::stream::begin_capture(self.raw, mode).map_err(|e| failed("capturing a graph", e))?;
            let enqueued = enqueue();
            let graph = result::stream::end_capture(self.raw).map_err(|e| failed("capturing a graph", e))?;
            enqueued?;
            let mut exec = std::ptr::null_mut();
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map_err(|e| failed("capturing a graph", e))?;
            Ok(Graph { device: self.device.clone(), exec })
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: `new` created the handle, which is destroyed only below.
            let _ = unsafe { result::stream::synchronize(self.raw) };
            // SAFETY: the handle is destroyed once, and all its work is done.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// An executable graph.
pub(in super::super) struct Graph {
    device: Arc<Device>,
    exec: sys::CUgraphExec,
}

// SAFETY: the driver allows graph handles on any thread that has made the context current (see `Device`).
unsafe impl Send for Graph {}

impl Graph {
    /// Enqueues the graph.
    ///
    /// # Safety
    /// All memory that the captured work uses must live until the stream has been waited for.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: both handles are live; the caller guarantees the memory.
        unsafe { result::graph::launch(self.exec, stream.raw) }.map_err(|e| failed("launching a step", e))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: `capture` instantiated the handle, which is destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
    }
}

/// A point in a stream that others wait for.
pub(in super::super) struct Event {
    device: Arc<Device>,
    raw: sys::CUevent,
}

// SAFETY: the driver allows event handles on any thread that has made the context current (see `Device`).
unsafe impl Send for Event {}

impl Event {
    pub fn new(device: &Arc<Device>) -> Result<Self, Error> {
        device.bind()?;
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(|e| failed("an event", e))?;
        Ok(Event { device: device.clone(), raw })
    }

    /// Records the event behind all work enqueued so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both handles are borrowed from live objects.
        unsafe { result::event::record(self.raw, stream.raw) }.map_err(|e| failed("an event", e))
    }

    /// Blocks until the recorded work is done.
    pub fn wait(&self) -> Result<(), Error> {
        self.device.bind()?;
        // SAFETY: `new` created the handle, and only `Drop` destroys it.
        unsafe { result::event::synchronize(self.raw) }.map_err(|e| failed("a kernel failed", e))
    }

    /// Milliseconds from another event to this one; both have been waited for.
    pub fn since(&self, start: &Event) -> Result<f64, Error> {
        // SAFETY: both handles are borrowed from live objects.
        unsafe { result::event::elapsed(start.raw, self.raw) }.map(f64::from).map_err(|e| failed("timing", e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: `new` created the handle, which is destroyed once.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}
