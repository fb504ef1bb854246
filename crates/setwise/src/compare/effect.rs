//! How much a column changed: the largest change of the share of rows in any event.
//!
//! Events are half-lines and intervals of an ordered column, categories, sets of categories, and missing values. One
//! scale serves all types: 0.03 means that 3 % of the rows moved. It bounds the total variation distance from below.
//!
//! The largest of many noisy changes is too large on average. Two corrections, both with noise drawn from a Gaussian
//! approximation, err on the side of small effects; the larger of both is taken.
//!
//! * The median of the noise of the events that are nearly as large as the largest is subtracted from it (Fang and
//!   Santos 2019). This suits events of equal noise, such as the half-lines that a shift changes.
//! * Each change is reduced by a multiple of its standard error before the largest is taken (Chernozhukov, Lee and
//!   Rosen 2013). This suits one clear event among noisy ones, such as a value that piles up.
//!
//! The 95 % quantile of the noise in place of the median gives the lower end of the interval.

use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use serde::Serialize;

use super::bins::Binned;
use super::marginal_test::{Span, spans};
use crate::random::Generator;

/// Draws of the noise.
const DRAWS: usize = 400;
/// Standard errors of a one-sided limit of 95 %.
const QUANTILE: f64 = 1.645;

/// What changed most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    /// Consecutive bins.
    Span(Span),
    /// A set of categories, by its largest one.
    Categories(usize),
    /// Missing values.
    Missing,
}

/// The size of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Effect {
    /// The largest change of a share of rows, corrected for noise.
    pub value: f64,
    /// The 90 % interval.
    pub interval: [f64; 2],
    /// The effect that noise alone shows in one of twenty comparisons.
    pub noise: f64,
}

/// The effect, and the event that tells it.
pub(super) fn effect(binned: &Binned, seed: u64) -> (Effect, Event) {
    let shares = Shares::new(binned);
    let mut rng = Generator::seed_from_u64(seed);
    let draws: Vec<Noise> = (0..DRAWS).map(|_| shares.noise(&mut rng)).collect();
    let changes = shares.changes();
    let of_events =
        if changes.is_empty() { Effect::default() } else { largest_change(&changes, &draws, shares.contact()) };
    let of_sets = if binned.ordered || binned.bins.len() < 3 { Effect::default() } else { shares.variation(&draws) };
    let told = told(&changes, binned.ordered);
    // Noise is that of both.
    let noise = of_events.noise.max(of_sets.noise);
    let larger = if of_sets.value > of_events.value { of_sets } else { of_events };
    // What 3 of n rows hold is missed in one of twenty tables.
    let rare = (3.0 / shares.rows[0].min(shares.rows[1]).max(3.0)).min(1.0);
    let high = of_events.interval[1].max(of_sets.interval[1]).max(rare);
    (Effect { interval: [larger.interval[0], high], noise, ..larger }, told)
}

/// The change of an event.
struct Change {
    event: Event,
    /// The share in the second table less that in the first.
    difference: f64,
    error: f64,
}

/// Of the events that changed about as much, the clearest one is told.
fn told(changes: &[Change], ordered: bool) -> Event {
    const AS_LARGE: f64 = 0.8;
    let largest = changes.iter().map(|c| c.difference.abs()).fold(0.0, f64::max);
    let clearness = |c: &Change| c.difference.abs() / c.error.max(1e-12);
    let large = changes.iter().filter(|c| c.difference.abs() >= AS_LARGE * largest);
    match large.max_by(|a, b| clearness(a).total_cmp(&clearness(b))).map(|c| c.event) {
        Some(Event::Span(span)) if !ordered => Event::Categories(span.from),
        Some(event) => event,
        None => Event::Missing,
    }
}

/// The largest change of fixed events, corrected for having been chosen among many.
fn largest_change(changes: &[Change], draws: &[Noise], contact: f64) -> Effect {
    let noise_of = |draw: &Noise, c: &Change| match c.event {
        Event::Span(span) => draw.prefix[span.to] - draw.prefix[span.from],
        Event::Categories(_) | Event::Missing => draw.missing,
    };
    // Noise in standard errors: `[draws, events]`.
    let scaled: Vec<Vec<f64>> =
        draws.iter().map(|draw| changes.iter().map(|c| noise_of(draw, c) / c.error).collect()).collect();
    let of_all = sorted(scaled.iter().map(|t| t.iter().fold(0.0, |most: f64, x| most.max(x.abs()))));
    let reduced = |k: f64| changes.iter().map(|c| c.difference.abs() - k * c.error).fold(0.0, f64::max);
    // Events that may be the largest one, in the observed direction or in both.
    let wide = at(&of_all, 1.0 - 0.1 / (draws.len() as f64).ln());
    let floor = reduced(wide);
    let competes = |size: f64, c: &Change| size >= floor - 2.0 * wide * c.error;
    let directed: Vec<bool> = changes.iter().map(|c| competes(c.difference.abs(), c)).collect();
    let both: Vec<bool> = changes.iter().map(|c| competes(-c.difference.abs(), c)).collect();
    let competing = sorted(scaled.iter().map(|t| {
        let of = |i: usize| match (directed[i], both[i]) {
            (_, true) => t[i].abs(),
            (true, false) => t[i] * changes[i].difference.signum(),
            _ => f64::NEG_INFINITY,
        };
        (0..changes.len()).map(of).fold(f64::NEG_INFINITY, f64::max)
    }));
    let largest = changes.iter().map(|c| c.difference.abs()).fold(0.0, f64::max);
    let near: Vec<bool> = changes.iter().map(|c| c.difference.abs() >= largest - contact * c.error).collect();
    let deviations = sorted(draws.iter().map(|draw| {
        let of = |(c, near): (&Change, &bool)| match (near, c.difference.abs() > contact * c.error) {
            (false, _) => f64::NEG_INFINITY,
            (true, true) => noise_of(draw, c) * c.difference.signum(),
            (true, false) => noise_of(draw, c).abs(),
        };
        changes.iter().zip(&near).map(of).fold(f64::NEG_INFINITY, f64::max)
    }));
    let reduced_by = |p: f64| share(reduced(at(&competing, p)).max(largest - at(&deviations, p)));
    let value = reduced_by(0.5);
    let low = reduced_by(0.95).min(value);
    let high = changes.iter().zip(&directed).filter(|(_, competes)| **competes);
    let high = high.map(|(c, _)| c.difference.abs() + QUANTILE * c.error).fold(value, f64::max);
    // What the same estimate is where nothing changed.
    let median = at(&of_all, 0.5);
    let of_noise = |t: &Vec<f64>| t.iter().zip(changes).map(|(x, c)| (x.abs() - median) * c.error).fold(0.0, f64::max);
    let raw = |draw: &Noise| changes.iter().map(|c| noise_of(draw, c).abs()).fold(0.0, f64::max);
    let raw = sorted(draws.iter().map(raw));
    let scaled_noise = at(&sorted(scaled.iter().map(of_noise)), 0.95);
    let noise = share(scaled_noise.max(at(&raw, 0.95) - at(&raw, 0.5)));
    let low = if value <= noise { 0.0 } else { low };
    Effect { value, interval: [low, share(high)], noise }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The quantile of sorted values.
fn at(sorted: &[f64], p: f64) -> f64 {
    sorted[((p * sorted.len() as f64) as usize).min(sorted.len() - 1)]
}

fn share(x: f64) -> f64 {
    x.clamp(0.0, 1.0)
}

/// Shares of both tables.
struct Shares<'a> {
    binned: &'a Binned,
    rows: [f64; 2],
    present: [f64; 2],
    /// Shares of the bins among the rows with a value.
    shares: [Vec<f64>; 2],
    /// Shares for the noise: an empty bin has some.
    smooth: [Vec<f64>; 2],
}

/// A draw of the sampling noise of all shares.
struct Noise {
    bins: Vec<f64>,
    /// Sums of the bins before each.
    prefix: Vec<f64>,
    missing: f64,
}

impl<'a> Shares<'a> {
    fn new(binned: &'a Binned) -> Self {
        let present = binned.present().map(|n| n as f64);
        let rows = std::array::from_fn(|t| present[t] + binned.missing[t] as f64);
        let all = (present[0] + present[1]).max(1.0);
        let totals = binned.totals();
        let shares =
            std::array::from_fn(|t| binned.counts[t].iter().map(|c| *c as f64 / present[t].max(1.0)).collect());
        let smooth = std::array::from_fn(|t| {
            let of = |(count, total): (&u64, &u64)| (*count as f64 + *total as f64 / all) / (present[t] + 1.0);
            binned.counts[t].iter().zip(&totals).map(of).collect()
        });
        Shares { binned, rows, present, shares, smooth }
    }

    fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let bins = self.shares[0].len();
        if self.present[0] > 0.0 && self.present[1] > 0.0 && bins > 1 {
            let prefix = [0, 1].map(|t| prefix_sums(&self.shares[t]));
            let change = |span: Span| {
                let shares = [0, 1].map(|t: usize| prefix[t][span.to] - prefix[t][span.from]);
                let difference = shares[1] - shares[0];
                Change { event: Event::Span(span), difference, error: self.error(shares, self.present) }
            };
            if self.binned.ordered {
                let (half_lines, levels) = spans(bins);
                changes.extend(half_lines.into_iter().chain(levels.into_iter().flatten()).map(change));
            } else {
                changes.extend((0..bins).map(|bin| change(Span { from: bin, to: bin + 1 })));
            }
        }
        let missing = self.missing();
        if missing != [0.0, 0.0] {
            let error = self.error(missing, self.rows);
            changes.push(Change { event: Event::Missing, difference: missing[1] - missing[0], error });
        }
        changes
    }

    fn missing(&self) -> [f64; 2] {
        std::array::from_fn(|t| self.binned.missing[t] as f64 / self.rows[t].max(1.0))
    }

    /// The standard error of a difference of shares.
    fn error(&self, shares: [f64; 2], rows: [f64; 2]) -> f64 {
        let pooled = (shares[0] * rows[0] + shares[1] * rows[1]) / (rows[0] + rows[1]);
        let variance = |t: usize| {
            let share = ((shares[t] * rows[t] + pooled) / (rows[t] + 1.0)).clamp(0.0, 1.0);
            share * (1.0 - share) / rows[t].max(1.0)
        };
        (variance(0) + variance(1)).sqrt().max(1e-12)
    }

    /// Standard errors within which two changes may be equal, which grow slowly with the rows.
    fn contact(&self) -> f64 {
        (2.0 * (self.rows[0] + self.rows[1]).max(16.0).ln().ln()).sqrt()
    }

    /// The total variation of the categories: half the sum of all changes.
    fn variation(&self, draws: &[Noise]) -> Effect {
        let contact = self.contact();
        let levels = |j: usize| {
            let shares = [0, 1].map(|t: usize| self.shares[t][j]);
            let difference = shares[1] - shares[0];
            (difference, difference.abs() > contact * self.error(shares, self.present))
        };
        let levels: Vec<(f64, bool)> = (0..self.shares[0].len()).map(levels).collect();
        let sum = 0.5 * levels.iter().map(|(difference, _)| difference.abs()).sum::<f64>();
        let half = |of: &dyn Fn(f64, (f64, bool)) -> f64, draw: &Noise| -> f64 {
            0.5 * draw.bins.iter().zip(&levels).map(|(noise, level)| of(*noise, *level)).sum::<f64>()
        };
        let directed = |noise: f64, difference: f64| if difference < 0.0 { -noise } else { noise };
        // A category that may not have changed adds its noise whichever its direction.
        let unclear = |noise: f64, (difference, clear): (f64, bool)| match clear {
            true => directed(noise, difference),
            false => noise.abs(),
        };
        let deviations = sorted(draws.iter().map(|draw| half(&unclear, draw)));
        let alone = sorted(draws.iter().map(|draw| half(&|noise, (difference, _)| directed(noise, difference), draw)));
        let of_noise = sorted(draws.iter().map(|draw| half(&|noise, _| noise.abs(), draw)));
        let value = share(sum - at(&deviations, 0.5));
        let interval = [share(sum - at(&deviations, 0.95)), share(sum - at(&alone, 0.05)).max(value)];
        Effect { value, interval, noise: share(at(&of_noise, 0.95) - at(&of_noise, 0.5)) }
    }

    /// Draws the noise of all shares.
    fn noise(&self, rng: &mut Generator) -> Noise {
        let mut bins = vec![0.0; self.shares[0].len()];
        for t in 0..2 {
            let rows = self.present[t].max(1.0).sqrt();
            let normals: Vec<f64> =
                self.smooth[t].iter().map(|p| p.sqrt() * rng.sample::<f64, _>(StandardNormal)).collect();
            let sum: f64 = normals.iter().sum();
            let sign = if t == 0 { -1.0 } else { 1.0 };
            for ((bin, z), p) in bins.iter_mut().zip(normals).zip(&self.smooth[t]) {
                *bin += sign * (z - p * sum) / rows;
            }
        }
        let missing = self.error(self.missing(), self.rows) * rng.sample::<f64, _>(StandardNormal);
        Noise { prefix: prefix_sums(&bins), bins, missing }
    }
}

fn prefix_sums(values: &[f64]) -> Vec<f64> {
    let sums = values.iter().scan(0.0, |sum, x| {
        *sum += x;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(rng: &mut Generator, n: usize) -> Vec<f64> {
        (0..n).map(|_| rng.random()).collect()
    }

    #[test]
    fn intervals_cover_the_true_change_of_shares() {
        let mut rng = Generator::seed_from_u64(7);
        for (shift, rows) in [(0.0, 400), (0.05, 1000), (0.2, 400), (0.2, 4000)] {
            let (mut covered, mut sum) = (0, 0.0);
            const RUNS: usize = 100;
            for run in 0..RUNS {
                let a = uniform(&mut rng, rows);
                let b: Vec<f64> = uniform(&mut rng, rows).into_iter().map(|x| x + shift).collect();
                let (effect, _) = effect(&Binned::ordered([&a, &b]), run as u64);
                covered += usize::from(effect.interval[0] <= shift && shift <= effect.interval[1]);
                sum += effect.value / RUNS as f64;
            }
            assert!(covered >= 84, "shift {shift}, {rows} rows: {covered} of {RUNS}");
            assert!((sum - shift).abs() < 0.02, "shift {shift}, {rows} rows: mean {sum}");
        }
    }

    #[test]
    fn categories_and_missing_values_have_the_total_variation() {
        let mut a = setwise_table::Text::default();
        let mut b = setwise_table::Text::default();
        for i in 0..10_000 {
            a.push(Some(["x", "y", "z", "w"][i % 4]));
            b.push(Some(if i % 10 == 0 { "new" } else { ["x", "y", "z", "w"][i % 4] }));
        }
        let (value, event) = effect(&Binned::levels([&a, &b]), 0);
        assert!((value.value - 0.1).abs() < 0.02 && value.interval[0] > 0.08 && value.interval[1] < 0.13, "{value:?}");
        assert!(matches!(event, Event::Categories(_)));
        let present: Vec<f64> = (0..1000).map(|i| f64::from(i % 7)).collect();
        let missing: Vec<f64> =
            present.iter().enumerate().map(|(i, x)| if i % 5 == 0 { f64::NAN } else { *x }).collect();
        let (value, event) = effect(&Binned::ordered([&present, &missing]), 0);
        assert!(event == Event::Missing && value.interval[0] < 0.2 && 0.2 < value.interval[1], "{value:?}");
    }

    #[test]
    fn the_noise_floor_falls_with_the_number_of_rows() {
        let mut rng = Generator::seed_from_u64(1);
        let mut floor = |n| effect(&Binned::ordered([&uniform(&mut rng, n), &uniform(&mut rng, n)]), 0).0.noise;
        let (few, many) = (floor(200), floor(20_000));
        assert!(many < 0.15 * few && many > 0.002, "{few} {many}");
    }
}
