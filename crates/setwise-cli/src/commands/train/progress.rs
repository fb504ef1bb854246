//! Progress bars of training runs, and progress lines of combiners.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use setwise_lab::estimator::FitProgress;
use setwise_lab::grid::CombinerEvent;
use setwise_lab::run::Event;

use crate::commands::log;

/// Seconds between lines if standard error is no terminal.
const LINE_EVERY: u64 = 30;

/// A bar for every run in progress, or occasional lines if standard error is no terminal.
pub struct Progress {
    bars: MultiProgress,
    runs: Vec<Mutex<Bar>>,
}

impl Progress {
    /// Bars of runs with these names and steps. The name of a single run is not shown.
    pub fn new(runs: impl ExactSizeIterator<Item = (String, u64)>) -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(5));
        let several = runs.len() > 1;
        let runs = runs.map(|(name, steps)| Mutex::new(Bar::new(if several { name } else { String::new() }, steps)));
        Progress { runs: runs.collect(), bars }
    }

    /// Shows an event of a run.
    pub fn show(&self, run: usize, event: Event) {
        let mut bar = self.runs[run].lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut bar.shown, true) {
            bar.bar = self.bars.add(bar.bar.clone());
            bar.lines = bar.bar.is_hidden();
        }
        bar.show(event);
    }

    /// Removes the bar of a run.
    pub fn ended(&self, run: usize) {
        let bar = self.runs[run].lock().unwrap_or_else(PoisonError::into_inner);
        bar.bar.finish_and_clear();
        self.bars.remove(&bar.bar);
    }

    /// Hides the bars while `print` runs.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.bars.suspend(print);
    }
}

/// The bar of one run: step, loss, validation error, steps per second, remaining time.
struct Bar {
    name: String,
    bar: ProgressBar,
    shown: bool,
    loss: Option<f64>,
    error: String,
    /// Whether lines replace the bar.
    lines: bool,
    last_line: Instant,
    first_step: Option<(u64, Instant)>,
    total: u64,
}

impl Bar {
    fn new(name: String, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let style = "{prefix}{bar:24} {pos}/{len}  {msg}  {per_sec}  {eta} left";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let name = if name.is_empty() { name } else { format!("{name}: ") };
        bar.set_prefix(name.clone());
        let (loss, error, first_step) = (None, String::new(), None);
        Bar { name, bar, shown: false, loss, error, lines: false, last_line: Instant::now(), first_step, total }
    }

    fn show(&mut self, event: Event) {
        match event {
            Event::Resumed(step) => {
                self.bar.set_position(step);
                self.bar.reset_eta();
                self.print(&format!("resumed after {step} steps"));
            }
            Event::Pretrained { step, loss } => {
                self.bar.set_message(format!("encoder pretraining: step {step}, loss {loss:.4}"));
                if self.lines && self.last_line.elapsed().as_secs() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    self.log(&format!("encoder pretraining: step {step}  loss {loss:.4}"));
                }
            }
            Event::Step { step, loss } => {
                // An exponential moving average over about 50 steps is less noisy than single losses.
                let smooth = self.loss.map_or(loss, |mean| mean + (loss - mean) / 50.0);
                self.loss = Some(smooth);
                self.bar.set_position(step);
                self.bar.set_message(format!("loss {smooth:.4}{}", self.error));
                let (first, start) = *self.first_step.get_or_insert_with(|| (step, Instant::now()));
                // The rate is unknown at the first step.
                if self.lines && step > first && self.last_line.elapsed().as_secs() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    let rate = (step - first) as f64 / start.elapsed().as_secs_f64().max(1e-9);
                    let (error, left) = (&self.error, (self.total - step) as f64 / rate.max(1e-9));
                    self.log(&format!(
                        "step {step}/{}  loss {smooth:.4}{error}  {rate:.1}/s  {left:.0} s left",
                        self.total
                    ));
                }
            }
            Event::Validated { error, .. } => {
                let coverage =
                    error.coverage.map_or(String::new(), |c| format!(", interval coverage {:.0} %", 100.0 * c));
                self.error = match error.accuracy {
                    Some(accuracy) => format!("  accuracy {accuracy:.4}"),
                    None => format!("  error {:.4}{coverage}", error.mean_absolute_error),
                }
            }
            Event::Saved(_) => {}
            Event::Warning(text) => self.print(&format!("warning: {text}")),
        }
    }

    /// Prints a line above the bar.
    fn print(&self, text: &str) {
        if self.lines {
            self.log(text);
        } else {
            self.bar.println(format!("{}{text}", self.name));
        }
    }

    /// Prints a line to standard error.
    fn log(&self, text: &str) {
        log(format!("{}{text}", self.name));
    }
}

/// Lines about the combiner in training.
pub struct CombinerProgress {
    last_line: Mutex<Instant>,
}

impl Default for CombinerProgress {
    fn default() -> Self {
        CombinerProgress { last_line: Mutex::new(Instant::now()) }
    }
}

impl CombinerProgress {
    /// Shows an event of the combiner in a run's folder.
    pub fn show(&self, folder: &Path, event: CombinerEvent) {
        let mut last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = folder.display();
        match event {
            CombinerEvent::Skipped => {
                log(format!("{folder}: stopped before its combiner is trained; --resume continues"));
            }
            CombinerEvent::Started => {
                log(format!("{folder}: training the combiner"));
                *last_line = Instant::now();
            }
            CombinerEvent::Progress(progress)
                if last_line.elapsed().as_secs() >= LINE_EVERY / 3 || matches!(progress, FitProgress::HeldOut(_)) =>
            {
                *last_line = Instant::now();
                log(match progress {
                    FitProgress::Examples(n, of) => format!("combiner: {n} of {of} examples"),
                    FitProgress::Steps(n, of, loss) => format!("combiner: step {n}/{of}  loss {loss:.4}"),
                    FitProgress::HeldOut(loss) => format!("combiner: held-out loss {loss:.5}"),
                });
            }
            CombinerEvent::Progress(_) => {}
            CombinerEvent::Trained(path) => log(format!("combiner: written to {}", path.display())),
            CombinerEvent::Stopped => log("combiner: stopped; --resume continues"),
        }
    }
}
