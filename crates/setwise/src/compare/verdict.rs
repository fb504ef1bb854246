//! The joint test, the flags, and how much changed in all.

use setwise_table::{ColumnType, Pairing};

use super::bins::{Bin, Binned};
use super::classifier::Separation;
use super::dependence::PairDifference;
use super::repeats::Repeats;
use super::sentence::percent;
use super::{ColumnChange, Compare, Comparison, Effect, PairChange, RepeatedRows, Studied, effect};

/// Shares of the level.
const COLUMNS_SHARE: f64 = 0.5;
const PAIRS_SHARE: f64 = 0.2;
const CLASSIFIER_SHARE: f64 = 0.25;
const REPEATS_SHARE: f64 = 0.05;

/// What was found in several columns at once.
pub(super) struct Evidence {
    pub pairs: Vec<PairDifference>,
    pub separation: Option<Separation>,
    pub repeats: Option<Repeats>,
}

impl Compare {
    pub(super) fn verdict(&self, pairing: Pairing, studied: Vec<Studied>, evidence: Evidence) -> Comparison {
        let Evidence { pairs, separation, repeats } = &evidence;
        let of_columns: Vec<f64> = studied.iter().filter_map(|s| s.p_value).collect();
        let of_pairs: Vec<f64> = pairs.iter().map(|p| p.p_value).collect();
        let parts = [
            (simes(&of_columns), COLUMNS_SHARE),
            (simes(&of_pairs), PAIRS_SHARE),
            (separation.as_ref().map_or(1.0, |s| s.p_value), CLASSIFIER_SHARE),
            (repeats.as_ref().map_or(1.0, |r| r.p_value), REPEATS_SHARE),
        ];
        let p_value = parts.iter().map(|(p, share)| p / share).fold(1.0, f64::min);
        let significant = p_value <= self.alpha;
        let (effect, interval) = divergence(&studied, &evidence, pairing.rows, p_value);
        let Evidence { pairs, separation, repeats } = evidence;
        // Every column has an equal part of the columns' level, every pair one of the pairs' level.
        let each = |p_values: &[f64], share: f64| {
            let weight = share / p_values.len().max(1) as f64;
            p_values.iter().map(|p| (*p, weight)).collect::<Vec<_>>()
        };
        let hypotheses = [each(&of_columns, COLUMNS_SHARE), each(&of_pairs, PAIRS_SHARE), parts[2..].to_vec()].concat();
        let rejected = holm(&hypotheses, self.alpha);
        let (columns_rejected, rest) = rejected.split_at(of_columns.len());
        let (pairs_rejected, rest) = rest.split_at(of_pairs.len());
        let (jointly_rejected, repeats_rejected) = (rest[0], rest[1]);
        let q_values = benjamini_hochberg(&of_columns);
        let mut tested = q_values.into_iter().zip(columns_rejected);
        let mut columns: Vec<ColumnChange> = Vec::with_capacity(studied.len());
        let mut binned = Vec::with_capacity(studied.len());
        for (paired, s) in pairing.columns.iter().zip(studied) {
            let tested = s.p_value.and_then(|_| tested.next());
            let q_value = tested.map(|(q, _)| q);
            let flagged = tested.is_some_and(|(_, rejected)| *rejected) && s.effect.value > self.min_effect;
            columns.push(ColumnChange {
                name: paired.name.clone(),
                column_type: paired.column_type,
                flagged,
                effect: s.effect.value,
                interval: s.effect.interval,
                noise: s.effect.noise,
                p_value: s.p_value,
                q_value,
                missing: s.missing,
                values: s.values,
                change: s.change,
                histogram: s.histogram,
            });
            binned.push(s.joint);
        }
        let pairs = self.pair_changes(pairs, &columns, &binned, pairs_rejected);
        let repeated_rows = repeats.map(|r| {
            let shares = [0, 1].map(|t: usize| r.counts[t] as f64 / pairing.rows[t] as f64);
            let large = (shares[1] - shares[0]).abs() > self.min_effect;
            RepeatedRows { flagged: repeats_rejected && large, shares, p_value: r.p_value }
        });
        // The share of rows that the classifier tells apart: a change that no column or pair shows.
        let told_apart = separation.map_or(0.0, |s| {
            let (size, _) = effect::effect(&Binned::ordered([&s.scores[0], &s.scores[1]]), self.seed);
            size.value
        });
        let jointly = jointly_rejected && told_apart > self.min_effect;
        let any =
            columns.iter().any(|c| c.flagged) || !pairs.is_empty() || repeated_rows.as_ref().is_some_and(|r| r.flagged);
        let changed = any || jointly;
        let mut order: Vec<ColumnChange> = columns;
        order.sort_by(|a, b| {
            (b.flagged, b.effect)
                .partial_cmp(&(a.flagged, a.effect))
                .expect("effects are numbers")
                .then_with(|| a.name.cmp(&b.name))
        });
        let mut notes = pairing.notes;
        let apart = order.iter().filter(|c| c.p_value.is_none());
        notes.extend(apart.map(|c| format!("column {:?} is not compared: its times do not overlap", c.name)));
        let comparison = Comparison {
            changed,
            p_value,
            effect,
            interval,
            alpha: self.alpha,
            min_effect: self.min_effect,
            tables: pairing.tables,
            rows: pairing.rows,
            summary: String::new(),
            columns: order,
            pairs,
            repeated_rows,
            only: pairing.only,
            notes,
        };
        Comparison { summary: headline(&comparison, significant, jointly), ..comparison }
    }

    /// The pairs that are flagged, the largest effect first.
    fn pair_changes(
        &self,
        pairs: Vec<PairDifference>,
        columns: &[ColumnChange],
        binned: &[Option<Binned>],
        rejected: &[bool],
    ) -> Vec<PairChange> {
        const QUANTILE: f64 = 1.645;
        let q_values = benjamini_hochberg(&pairs.iter().map(|p| p.p_value).collect::<Vec<_>>());
        let name = |column: usize, level: Option<usize>| {
            let of_level = level.and_then(|l| match binned[column].as_ref()?.bins.get(l)? {
                Bin::Level(level) if columns[column].column_type == ColumnType::Category => Some(level),
                _ => None,
            });
            of_level.map_or(columns[column].name.clone(), |level| format!("{}={level}", columns[column].name))
        };
        let flagged = |((pair, _), rejected): &((PairDifference, f64), &bool)| {
            let same = pair.columns.iter().all(|&c| !columns[c].flagged);
            **rejected && same && pair.effect > self.min_effect
        };
        let change = |(pair, q_value): (PairDifference, f64)| PairChange {
            columns: [0, 1].map(|i: usize| name(pair.columns[i], pair.levels[i])),
            correlations: pair.correlations,
            effect: pair.effect,
            interval: [-1.0, 1.0].map(|sign| (pair.effect + sign * QUANTILE * pair.error).clamp(0.0, 1.0)),
            p_value: pair.p_value,
            q_value,
        };
        let mut changes: Vec<PairChange> =
            pairs.into_iter().zip(q_values).zip(rejected).filter(flagged).map(|(pair, _)| change(pair)).collect();
        changes.sort_by(|a, b| b.effect.total_cmp(&a.effect));
        changes
    }
}

/// The hypotheses that the weighted procedure of Holm (1979) rejects: p-values with their shares of the level.
///
/// The chance that any true hypothesis is rejected is at most `alpha`, whichever hypotheses are true.
fn holm(hypotheses: &[(f64, f64)], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..hypotheses.len()).collect();
    let scaled = |i: usize| hypotheses[i].0 / hypotheses[i].1;
    order.sort_by(|&i, &j| scaled(i).total_cmp(&scaled(j)));
    let (mut rejected, mut rest) = (vec![false; hypotheses.len()], 1.0f64);
    for i in order {
        // Rounding must not leave less than the weight of the hypothesis itself.
        if scaled(i) * rest.max(hypotheses[i].1) > alpha {
            break;
        }
        rejected[i] = true;
        rest -= hypotheses[i].1;
    }
    rejected
}

/// The p-value of Simes (1986) of the hypothesis that all are null.
fn simes(p_values: &[f64]) -> f64 {
    let mut sorted = p_values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    sorted.iter().enumerate().map(|(i, p)| p * n / (i + 1) as f64).fold(1.0, f64::min)
}

/// The q-values of Benjamini and Hochberg (1995).
fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&i, &j| p_values[j].total_cmp(&p_values[i]));
    let (mut q_values, mut least) = (vec![1.0; p_values.len()], 1.0f64);
    for (i, &place) in order.iter().enumerate() {
        let rank = (p_values.len() - i) as f64;
        least = least.min(p_values[place] * p_values.len() as f64 / rank);
        q_values[place] = least;
    }
    q_values
}

/// A lower bound of the Jensen–Shannon divergence, less its bias, and the standard deviation of its noise.
#[derive(Clone, Copy, Default)]
pub(super) struct Divergence {
    value: f64,
    noise: f64,
}

impl Divergence {
    /// The larger of two.
    pub fn larger(self, other: Self) -> Self {
        if other.value > self.value { other } else { self }
    }
}

/// The divergence of a column from its bins.
pub(super) fn marginal_divergence(binned: &Binned) -> Divergence {
    let rows = [0, 1].map(|t: usize| (binned.present()[t] + binned.missing[t]).max(1) as f64);
    let shares = [0, 1].map(|t: usize| {
        let counts = binned.counts[t].iter().chain([&binned.missing[t]]);
        counts.map(|c| *c as f64 / rows[t]).collect::<Vec<f64>>()
    });
    let part = |p: f64, m: f64| if p > 0.0 { 0.5 * p * (p / m).ln() } else { 0.0 };
    let sum: f64 =
        shares[0].iter().zip(&shares[1]).map(|(p, q)| part(*p, 0.5 * (p + q)) + part(*q, 0.5 * (p + q))).sum();
    // Without a difference the sum is a χ² variable times this.
    let scale = (1.0 / rows[0] + 1.0 / rows[1]) / 8.0;
    let parameters = binned.bins.len() as f64;
    Divergence { value: sum - scale * parameters, noise: scale * (2.0 * parameters).sqrt() }
}

/// The Jensen–Shannon divergence of all columns with its 90 % interval.
///
/// The classifier and each column bound it from below. Above, the interval adds what parameters of columns and pairs may
/// differ without being seen: each adds at most a χ² variable times (1/n + 1/m)/8.
/// Where the joint test sees no difference, the interval begins at zero.
fn divergence(studied: &[Studied], evidence: &Evidence, rows: [usize; 2], p_value: f64) -> (f64, [f64; 2]) {
    const QUANTILE: f64 = 1.645;
    const ONE_SIDED: f64 = 0.95;
    /// Parameters of a column.
    const OF_COLUMN: f64 = 10.0;
    let columns = studied.iter().filter(|s| s.joint.is_some()).count() as f64;
    let parameters = OF_COLUMN * columns + 0.5 * columns * (columns - 1.0);
    let per_row = (1.0 / rows[0].max(1) as f64 + 1.0 / rows[1].max(1) as f64) / 8.0;
    let unseen = per_row * (parameters + QUANTILE * (2.0 * parameters).sqrt());
    // The largest of many columns counts where it is above the noise of all.
    let clear = (2.0 * (columns + 1.0).ln()).sqrt();
    let is_clear = |d: &&Divergence| d.value > clear * d.noise;
    let largest = studied.iter().map(|s| &s.divergence).filter(is_clear).max_by(|a, b| a.value.total_cmp(&b.value));
    let of_columns = largest.copied().unwrap_or_default();
    let (seen, error) = evidence.separation.as_ref().map_or((0.0, 0.0), |s| (s.divergence.max(0.0), s.error));
    let limit = std::f64::consts::LN_2;
    // Pinsker's inequality: a change of a share by δ is a divergence of at least δ²/2.
    let pinsker = |of: &dyn Fn(&Effect) -> f64| studied.iter().map(|s| 0.5 * of(&s.effect).powi(2)).fold(0.0, f64::max);
    let (least, likely) = (pinsker(&|e| e.interval[0]), pinsker(&|e| e.value));
    let value = seen.max(of_columns.value).max(likely).clamp(0.0, limit);
    let error = error.max(of_columns.noise).max(per_row.sqrt() * value.sqrt());
    let low = if p_value > 1.0 - ONE_SIDED { 0.0 } else { (value - QUANTILE * error).max(least) };
    // What 3 of n rows hold is missed in one of twenty tables.
    let rare = 3.0 * limit / rows[0].min(rows[1]).max(3) as f64;
    (value, [low, (value + QUANTILE * error + unseen + rare).min(limit)])
}

/// What changed, in a sentence.
fn headline(comparison: &Comparison, significant: bool, jointly: bool) -> String {
    const NAMED: usize = 3;
    let flagged: Vec<&ColumnChange> = comparison.columns.iter().filter(|c| c.flagged).collect();
    let mut parts: Vec<String> = flagged.iter().take(NAMED).map(|c| format!("{} ({})", c.name, c.change)).collect();
    if flagged.len() > NAMED {
        let more = flagged.len() - NAMED;
        parts.push(if more == 1 { "1 more column".to_owned() } else { format!("{more} more columns") });
    }
    if let Some(pair) = comparison.pairs.first() {
        let [a, b] = &pair.columns;
        let [before, after] = pair.correlations;
        let more = comparison.pairs.len() - 1;
        let more = match more {
            0 => String::new(),
            1 => " and 1 more pair".to_owned(),
            _ => format!(" and {more} more pairs"),
        };
        parts.push(format!("the correlation of {a} with {b} ({before:.2} before, {after:.2} after){more}"));
    }
    if let Some(repeated) = comparison.repeated_rows.as_ref().filter(|r| r.flagged) {
        let [before, after] = repeated.shares.map(percent);
        parts.push(format!("repeated rows ({before} before, {after} after)"));
    }
    let compared = comparison.columns.iter().filter(|c| c.p_value.is_some()).count();
    let plural = if compared == 1 { "column" } else { "columns" };
    match () {
        () if !parts.is_empty() => format!("Changed: {}.", parts.join("; ")),
        () if jointly => "The columns differ jointly; no column and no pair of columns shows it alone.".to_owned(),
        () if significant => format!("All changes are smaller than {} of the rows.", percent(comparison.min_effect)),
        () => format!("No evidence of a change in {compared} {plural}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_free_the_level_of_their_hypotheses() {
        let third = 1.0 / 3.0;
        assert_eq!(holm(&[(0.01, third), (0.02, third), (0.06, third)], 0.05), [true, true, false]);
        assert_eq!(holm(&[(0.02, third), (0.03, third), (0.04, third)], 0.05), [false; 3]);
        assert_eq!(holm(&[(0.04, 0.9), (0.049, 0.1)], 0.05), [true, true]);
        assert!(holm(&[], 0.05).is_empty());
    }

    #[test]
    fn q_values_and_simes_match_worked_examples() {
        let q = benjamini_hochberg(&[0.01, 0.04, 0.03, 0.5]);
        let expected = [0.04, 0.16 / 3.0, 0.16 / 3.0, 0.5];
        assert!(q.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{q:?}");
        assert!((simes(&[0.01, 0.04, 0.03, 0.5]) - 0.04).abs() < 1e-12);
        assert_eq!((simes(&[]), simes(&[1.0, 1.0])), (1.0, 1.0));
    }
}
