//! The thread pool of a process.
//!
//! A forked process inherits the global pool of rayon without its threads and would wait for them forever. Every
//! process therefore creates a pool at its first call.

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

/// The pool of the last process that published one. A published pool is never freed, because other threads may use it.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

fn pool() -> PyResult<&'static ThreadPool> {
    let process = std::process::id();
    loop {
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: the pointer is null or a published pool. Published pools come from `Box::into_raw` below, and are
        // neither changed nor freed. `Acquire` makes the pool's fields visible.
        if let Some(pool) = unsafe { current.as_ref() }.filter(|p| p.process == process) {
            return Ok(&pool.threads);
        }
        let threads = ThreadPoolBuilder::new()
            .thread_name(|i| format!("setwise-{i}"))
            .build()
            .map_err(|e| PyRuntimeError::new_err(format!("cannot start threads: {e}")))?;
        let new = Box::into_raw(Box::new(Pool { process, threads }));
        if POOL.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: `new` comes from `Box::into_raw` above. The exchange failed, so no other thread has the pointer.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Runs `work` on the pool, without the interpreter lock.
pub fn compute<T: Ungil + Send>(py: Python<'_>, work: impl FnOnce() -> T + Ungil + Send) -> PyResult<T> {
    py.detach(|| Ok(pool()?.install(work)))
}
