//! A sign of life of work whose length is unknown.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work of this length shows nothing.
const DELAY: Duration = Duration::from_secs(2);

/// Works, and after two seconds shows what is done and for how long. Only terminals show it.
pub fn with_spinner<T>(text: &'static str, work: impl FnOnce() -> T) -> T {
    let (finished, wait) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(DELAY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let target = ProgressDrawTarget::stderr_with_hz(5);
            let spinner = ProgressBar::with_draw_target(None, target).with_elapsed(DELAY);
            let style = ProgressStyle::with_template("{spinner} {msg}  {elapsed}");
            spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            spinner.set_message(text);
            spinner.enable_steady_tick(Duration::from_millis(200));
            let _ = wait.recv();
            spinner.finish_and_clear();
        });
        let result = work();
        // The thread ends as soon as the sender is gone.
        drop(finished);
        result
    })
}
