//! Threads that draw batches ahead of their use.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Draws items 0, 1, 2, … on threads and returns them in that order.
///
/// Item i depends on i alone, so the number of threads changes nothing but the time.
///
/// ```
/// let mut squares = setwise_lab::prefetch::Prefetcher::new(3, 10, |i| i * i);
/// assert_eq!([squares.next(), squares.next()], [Some(100), Some(121)]);
/// ```
pub struct Prefetcher<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
    next: u64,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// The largest distance between an item that is drawn and the one that is returned next.
    max_ahead: u64,
}

struct State<T> {
    ready: BTreeMap<u64, T>,
    /// The next item to draw.
    next_to_draw: u64,
    /// The next item to return.
    next_to_return: u64,
    closed: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Prefetcher<T> {
    /// Starts at least one thread. The threads draw from item `first` on and run a few items per thread ahead.
    pub fn new(threads: usize, first: u64, draw: impl Fn(u64) -> T + Send + Sync + 'static) -> Self {
        let threads = threads.max(1);
        let state = State { ready: BTreeMap::new(), next_to_draw: first, next_to_return: first, closed: false };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), max_ahead: 2 * threads as u64 + 2 });
        let draw = Arc::new(draw);
        let threads = (0..threads)
            .map(|_| {
                let (shared, draw) = (shared.clone(), draw.clone());
                std::thread::spawn(move || work(&shared, &*draw))
            })
            .collect();
        Prefetcher { shared, threads, next: first }
    }

    /// Waits for the next item. None if a thread has panicked.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<T> {
        let mut state = self.shared.lock();
        loop {
            if let Some(item) = state.ready.remove(&self.next) {
                self.next += 1;
                state.next_to_return = self.next;
                self.shared.changed.notify_all();
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for Prefetcher<T> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // The thread itself reports its panic.
            let _ = thread.join();
        }
    }
}

/// Closes the prefetcher when a thread ends, so that nobody waits for an item of a thread that panicked.
struct CloseOnEnd<'a, T>(&'a Shared<T>);

impl<T> Drop for CloseOnEnd<'_, T> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

fn work<T>(shared: &Shared<T>, draw: &impl Fn(u64) -> T) {
    let _close = CloseOnEnd(shared);
    loop {
        let mut state = shared.lock();
        while !state.closed && state.next_to_draw >= state.next_to_return + shared.max_ahead {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return;
        }
        let i = state.next_to_draw;
        state.next_to_draw += 1;
        drop(state);
        let item = draw(i);
        shared.lock().ready.insert(i, item);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn items_come_in_order_for_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let mut prefetcher = Prefetcher::new(threads, 5, |i| {
                // Later items are often ready first.
                std::thread::sleep(std::time::Duration::from_micros(300 * (7 - i % 7)));
                i
            });
            let items: Vec<u64> = (0..50).map_while(|_| prefetcher.next()).collect();
            assert_eq!(items, (5..55).collect::<Vec<_>>());
        }
    }

    #[test]
    fn threads_do_not_run_far_ahead() {
        static DRAWS: AtomicU64 = AtomicU64::new(0);
        let mut prefetcher = Prefetcher::new(2, 0, |_| DRAWS.fetch_add(1, Ordering::SeqCst));
        prefetcher.next();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(DRAWS.load(Ordering::SeqCst) <= 7 + 2);
    }

    #[test]
    fn a_thread_that_panics_ends_the_prefetcher_instead_of_blocking_it() {
        let mut prefetcher = Prefetcher::new(2, 0, |i| if i == 3 { panic!("on purpose") } else { i });
        let items: Vec<u64> = (0..10).map_while(|_| prefetcher.next()).collect();
        assert!(items.len() <= 3);
    }
}
