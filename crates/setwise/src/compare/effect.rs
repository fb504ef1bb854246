//! How much a column changed: the largest change of the share of rows in any event.
//!
//! Events are half-lines and intervals of an ordered column, sets of categories, and missing values. One scale serves
//! all types: 0.03 means that 3 % of the rows moved. For categories it is the total variation distance.
//!
//! The largest of many noisy changes is too large on average. A Gaussian approximation of the sampling noise, drawn
//! many times over the events that are nearly as large, gives the bias and an interval (Fang and Santos 2019). Where
//! noise explains all events the interval begins at zero.

use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use serde::Serialize;

use super::bins::Binned;
use super::marginal_test::{Span, spans};
use crate::random::Generator;

/// Draws of the noise.
const DRAWS: usize = 400;

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The largest change of a share of rows, corrected for noise.
    pub value: f64,
    /// The 90 % interval.
    pub interval: [f64; 2],
    /// The largest change that noise alone shows in one of twenty comparisons.
    pub noise: f64,
}

/// The change of an event.
#[derive(Clone, Copy)]
struct Change {
    event: Event,
    /// The share in the second table less that in the first.
    difference: f64,
    error: f64,
}

/// The effect, and the event with the largest change.
pub(super) fn effect(binned: &Binned, seed: u64) -> (Effect, Event) {
    let sampling = Noise::new(binned);
    let changes = sampling.changes();
    let largest = changes.iter().map(|c| c.difference.abs()).fold(0.0, f64::max);
    // Of the events that changed about as much, the clearest one is told.
    const AS_LARGE: f64 = 0.8;
    let clearness = |c: &Change| c.difference.abs() / c.error.max(1e-12);
    let large = changes.iter().filter(|c| c.difference.abs() >= AS_LARGE * largest);
    let told = large.max_by(|a, b| clearness(a).total_cmp(&clearness(b))).map_or(Event::Missing, |c| c.event);
    let rows = sampling.rows[0] + sampling.rows[1];
    // Events within a few errors of the largest one may be the largest one.
    let contact = (2.0 * rows.max(16.0).ln().ln()).sqrt();
    let near: Vec<bool> =
        changes.iter().map(|c| c.difference.abs() >= largest - contact * c.error.max(1e-12)).collect();
    let mut rng = Generator::seed_from_u64(seed);
    let top = changes.iter().position(|c| c.difference.abs() == largest);
    // Deviations of the largest change: if all near events compete with it, and if none does. Noise of all events.
    let [mut deviations, mut alone, mut floors] = [const { Vec::new() }; 3];
    let mut drawn = sampling.drawing();
    for _ in 0..DRAWS {
        drawn.draw(&mut rng);
        let (mut deviation, mut floor) = (f64::NEG_INFINITY, 0.0f64);
        for (i, (change, near)) in changes.iter().zip(&near).enumerate() {
            let of = drawn.of(change, contact);
            floor = floor.max(of.noise);
            if *near {
                deviation = deviation.max(of.deviation);
            }
            if Some(i) == top {
                alone.push(of.directed);
            }
        }
        deviations.push(deviation);
        floors.push(floor);
    }
    for draws in [&mut deviations, &mut alone, &mut floors] {
        draws.sort_by(f64::total_cmp);
    }
    if changes.is_empty() {
        return (Effect { value: 0.0, interval: [0.0; 2], noise: 0.0 }, told);
    }
    let at = |sorted: &[f64], p: f64| sorted[((p * DRAWS as f64) as usize).min(DRAWS - 1)];
    let share = |x: f64| x.clamp(0.0, 1.0);
    let value = share(largest - at(&deviations, 0.5));
    let interval = [share(largest - at(&deviations, 0.95)), share(largest - at(&alone, 0.05))];
    let noise = share(at(&floors, 0.95));
    let low = if largest <= noise { 0.0 } else { interval[0].min(value) };
    (Effect { value, interval: [low, interval[1].max(value)], noise }, told)
}

/// Shares of both tables and their sampling noise.
struct Noise<'a> {
    binned: &'a Binned,
    rows: [f64; 2],
    present: [f64; 2],
    /// Shares of the bins among the rows with a value.
    shares: [Vec<f64>; 2],
    /// Shares for the noise: an empty bin has some.
    smooth: [Vec<f64>; 2],
}

impl<'a> Noise<'a> {
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
        Noise { binned, rows, present, shares, smooth }
    }

    fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let bins = self.shares[0].len();
        if self.present[0] > 0.0 && self.present[1] > 0.0 {
            if self.binned.ordered {
                let (half_lines, levels) = spans(bins);
                let prefix = [0, 1].map(|t| prefix_sums(&self.shares[t]));
                let change = |span: Span| {
                    let shares = [0, 1].map(|t: usize| prefix[t][span.to] - prefix[t][span.from]);
                    let difference = shares[1] - shares[0];
                    Change { event: Event::Span(span), difference, error: self.error(shares, self.present) }
                };
                changes.extend(half_lines.into_iter().chain(levels.into_iter().flatten()).map(change));
            } else if bins > 1 {
                let differences: Vec<f64> = self.shares[1].iter().zip(&self.shares[0]).map(|(b, a)| b - a).collect();
                let largest = (0..bins).max_by(|i, j| differences[*i].abs().total_cmp(&differences[*j].abs()));
                let difference = 0.5 * differences.iter().map(|d| d.abs()).sum::<f64>();
                // All sets of categories are one event here: its noise is drawn category by category.
                let event = Event::Categories(largest.unwrap_or(0));
                let error = self.error([0, 1].map(|t: usize| self.shares[t][largest.unwrap_or(0)]), self.present);
                changes.push(Change { event, difference, error });
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
            let share = (shares[t] * rows[t] + pooled) / (rows[t] + 1.0);
            share * (1.0 - share) / rows[t].max(1.0)
        };
        (variance(0) + variance(1)).sqrt()
    }

    fn drawing(&'a self) -> Drawing<'a> {
        let bins = self.shares[0].len();
        Drawing { noise: self, bins: vec![0.0; bins], prefix: vec![0.0; bins + 1], missing: 0.0 }
    }
}

fn prefix_sums(values: &[f64]) -> Vec<f64> {
    let sums = values.iter().scan(0.0, |sum, x| {
        *sum += x;
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

/// One draw of the noise of all shares.
struct Drawing<'a> {
    noise: &'a Noise<'a>,
    bins: Vec<f64>,
    prefix: Vec<f64>,
    missing: f64,
}

impl Drawing<'_> {
    fn draw(&mut self, rng: &mut Generator) {
        let noise = self.noise;
        self.bins.fill(0.0);
        for t in 0..2 {
            let rows = noise.present[t].max(1.0).sqrt();
            let normals: Vec<f64> =
                noise.smooth[t].iter().map(|p| p.sqrt() * rng.sample::<f64, _>(StandardNormal)).collect();
            let sum: f64 = normals.iter().sum();
            let sign = if t == 0 { -1.0 } else { 1.0 };
            for ((bin, z), p) in self.bins.iter_mut().zip(normals).zip(&noise.smooth[t]) {
                *bin += sign * (z - p * sum) / rows;
            }
        }
        let mut sum = 0.0;
        for (prefix, bin) in self.prefix[1..].iter_mut().zip(&self.bins) {
            sum += bin;
            *prefix = sum;
        }
        self.missing = noise.error(noise.missing(), noise.rows) * rng.sample::<f64, _>(StandardNormal);
    }

    /// The noise of a change. A change within `contact` errors of zero may have either direction.
    fn of(&self, change: &Change, contact: f64) -> Draw {
        let one = |difference: f64, error: f64, noise: f64| {
            let directed = if difference < 0.0 { -noise } else { noise };
            let clear = difference.abs() > contact * error;
            Draw { deviation: if clear { directed } else { noise.abs() }, directed, noise: noise.abs() }
        };
        match change.event {
            Event::Span(span) => one(change.difference, change.error, self.prefix[span.to] - self.prefix[span.from]),
            Event::Missing => one(change.difference, change.error, self.missing),
            Event::Categories(_) => {
                let (noise, mut sum) = (self.noise, Draw::default());
                for (j, draw) in self.bins.iter().enumerate() {
                    let shares = [0, 1].map(|t: usize| noise.shares[t][j]);
                    let of = one(shares[1] - shares[0], noise.error(shares, noise.present), *draw);
                    sum.deviation += 0.5 * of.deviation;
                    sum.directed += 0.5 * of.directed;
                    sum.noise += 0.5 * of.noise;
                }
                sum
            }
        }
    }
}

/// The noise of a change in one draw.
#[derive(Default)]
struct Draw {
    /// What it adds to the change, which may have either direction unless it is clear.
    deviation: f64,
    /// What it adds in the observed direction.
    directed: f64,
    /// Its magnitude.
    noise: f64,
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
        assert!(many < 0.15 * few && many > 0.005, "{few} {many}");
    }
}
