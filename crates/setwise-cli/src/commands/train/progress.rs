//! Bars of runs under way.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use setwise_lab::run::Event;

use crate::commands::log;

/// Seconds between lines where there is no terminal.
pub const LINE_EVERY: u64 = 30;

/// A bar for every run under way; lines now and then where there is no terminal.
pub struct Progress {
    bars: MultiProgress,
    runs: Vec<Mutex<Bar>>,
}

impl Progress {
    /// For runs of these names and steps. A single run's name is not shown.
    pub fn new(runs: impl ExactSizeIterator<Item = (String, u64)>) -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(5));
        let several = runs.len() > 1;
        let runs = runs.map(|(name, steps)| Mutex::new(Bar::new(if several { name } else { String::new() }, steps)));
        Progress { runs: runs.collect(), bars }
    }

    /// Shows what happened in a run.
    pub fn show(&self, run: usize, event: Event) {
        let mut bar = self.runs[run].lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut bar.shown, true) {
            bar.bar = self.bars.add(bar.bar.clone());
            bar.quiet = bar.bar.is_hidden();
        }
        bar.show(event);
    }

    /// Takes a run's bar away.
    pub fn ended(&self, run: usize) {
        let bar = self.runs[run].lock().unwrap_or_else(PoisonError::into_inner);
        bar.bar.finish_and_clear();
        self.bars.remove(&bar.bar);
    }

    /// Prints something without disturbing the bars.
    pub fn aside(&self, print: impl FnOnce()) {
        self.bars.suspend(print);
    }
}

/// Step, loss, validation error, steps per second, time left.
struct Bar {
    name: String,
    bar: ProgressBar,
    shown: bool,
    loss: Option<f64>,
    error: String,
    quiet: bool,
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
        Bar { name, bar, shown: false, loss, error, quiet: false, last_line: Instant::now(), first_step, total }
    }

    fn show(&mut self, event: Event) {
        match event {
            Event::Resumed(step) => {
                self.bar.set_position(step);
                self.bar.reset_eta();
                self.line(&format!("going on after {step} steps"));
            }
            Event::Pretrained { step, loss } => {
                self.bar.set_message(format!("classifying: step {step}, loss {loss:.4}"));
                if self.quiet && self.last_line.elapsed().as_secs() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    self.note(format!("classifying: step {step}  loss {loss:.4}"));
                }
            }
            Event::Step { step, loss } => {
                // A running mean over about fifty steps reads better than single losses.
                let smooth = self.loss.map_or(loss, |old| old + (loss - old) / 50.0);
                self.loss = Some(smooth);
                self.bar.set_position(step);
                self.bar.set_message(format!("loss {smooth:.4}{}", self.error));
                let (first, start) = *self.first_step.get_or_insert_with(|| (step, Instant::now()));
                // The first step has nothing to tell its rate by.
                if self.quiet && step > first && self.last_line.elapsed().as_secs() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    let rate = (step - first) as f64 / start.elapsed().as_secs_f64().max(1e-9);
                    let (error, left) = (&self.error, (self.total - step) as f64 / rate.max(1e-9));
                    self.note(format!(
                        "step {step}/{}  loss {smooth:.4}{error}  {rate:.1}/s  {left:.0} s left",
                        self.total
                    ));
                }
            }
            Event::Validated { error, .. } => {
                let covered =
                    error.coverage.map_or(String::new(), |c| format!(", {:.0} % within the interval", 100.0 * c));
                self.error = match error.accuracy {
                    Some(accuracy) => format!("  accuracy {accuracy:.4}"),
                    None => format!("  error {:.4}{covered}", error.mean_absolute_error),
                }
            }
            Event::Saved(_) => {}
            Event::Warning(text) => self.line(&format!("warning: {text}")),
        }
    }

    fn line(&self, text: &str) {
        if self.quiet {
            self.note(text.to_owned());
        } else {
            self.bar.println(format!("{}{text}", self.name));
        }
    }

    fn note(&self, text: String) {
        log(format!("{}{text}", self.name));
    }
}
