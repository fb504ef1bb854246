//! Signs of life of work on two samples.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use setwise::estimate::Progress;

/// Work of this length shows nothing.
const DELAY: Duration = Duration::from_secs(2);
/// Time between two looks at the progress.
const INTERVAL: Duration = Duration::from_millis(200);
/// Parts of the bar.
const PARTS: u64 = 1000;

/// Works, and after two seconds shows what is done and for how long: with a bar where the work tells how far it is.
/// Only terminals show it.
pub fn with_progress<T>(text: &'static str, work: impl FnOnce(&Progress) -> T) -> T {
    let progress = Progress::default();
    let (finished, wait) = channel::<()>();
    thread::scope(|scope| {
        let progress = &progress;
        scope.spawn(move || {
            if wait.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
                let bar =
                    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5)).with_elapsed(DELAY);
                bar.set_message(text);
                bar.set_style(style("{spinner} {msg}  {elapsed}"));
                bar.enable_steady_tick(INTERVAL);
                loop {
                    if let Some(share) = progress.share() {
                        if bar.length().is_none() {
                            bar.set_length(PARTS);
                            bar.set_style(style("{msg}  {bar:24} {percent:>3} %  {elapsed}"));
                        }
                        // What is planned may grow; the bar does not go back.
                        bar.set_position(bar.position().max((share * PARTS as f64) as u64));
                    }
                    if wait.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                }
                bar.finish_and_clear();
            }
        });
        let result = work(progress);
        // The thread ends as soon as the sender is gone.
        drop(finished);
        result
    })
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// The progress bar of a list of pairs. Only terminals show it, and only for long lists.
pub fn pairs_bar(pairs: usize) -> ProgressBar {
    const MAX_WITHOUT_BAR: usize = 8;
    if pairs <= MAX_WITHOUT_BAR {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(pairs as u64), ProgressDrawTarget::stderr_with_hz(5));
    bar.set_style(style("{bar:24} {pos}/{len} pairs  {per_sec}  {eta} left"));
    bar.tick();
    bar
}
