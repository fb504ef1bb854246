//! The threads that compute.
//!
//! A pool of this module's own instead of the global one: a process that was forked from one with a pool has none of its threads and would
//! wait for them for ever, so every process gets its own pool at its first call.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::marker::Ungil;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

struct Pool {
    process: u32,
    threads: ThreadPool,
}

/// The current pool. One that has been here stays for ever: threads of other calls, or of a parent process, may be using it.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

fn pool() -> PyResult<&'static ThreadPool> {
    let process = std::process::id();
    loop {
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: the pointer is null or comes from the `Box::into_raw` below and is never freed.
        if let Some(pool) = unsafe { current.as_ref() }.filter(|p| p.process == process) {
            return Ok(&pool.threads);
        }
        let threads = ThreadPoolBuilder::new()
            .thread_name(|i| format!("setwise-{i}"))
            .build()
            .map_err(|e| PyRuntimeError::new_err(format!("threads could not be started: {e}")))?;
        let new = Box::into_raw(Box::new(Pool { process, threads }));
        if POOL.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nobody else has seen it; another thread was faster.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Computes on the pool while other Python threads run.
pub fn compute<T: Ungil + Send>(py: Python<'_>, work: impl FnOnce() -> T + Ungil + Send) -> PyResult<T> {
    py.detach(|| Ok(pool()?.install(work)))
}
