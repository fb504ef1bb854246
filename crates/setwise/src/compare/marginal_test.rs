//! The permutation test of one column.
//!
//! The statistic is the largest evidence of several looks at the column, each on the scale −ln p and with a weight:
//!
//! | look | power against |
//! | --- | --- |
//! | Anderson–Darling sum over half-lines | shifts and changes of scale |
//! | best half-line | tails |
//! | best interval of dyadic length | modes, gaps, values that pile up |
//! | Pearson's sum over categories | many small changes |
//! | best category | a new or a lost category |
//! | share of missing values | missing values |
//!
//! −ln p of a look is an approximation. The permutations make the test of their maximum exact: rows are exchangeable
//! under the hypothesis. Permutations stop early where the hypothesis is plausible (Besag and Clifford 1991). Where no
//! permutation reaches the observed statistic, a tail bound of the hypergeometric distribution replaces 1/(B + 1) if it
//! is smaller; p stays valid, since the bound alone is. Where the bound is tiny no permutations are drawn.

use rand::SeedableRng;

use super::bins::Binned;
use super::draws::draw_counts;
use super::log_tables::LogTables;
use crate::distributions::normal::chi_squared_tail;
use crate::random::Generator;

/// Permutations: the fewest and the most.
const PERMUTATIONS: [usize; 2] = [999, 19_999];
/// A bound below which permutations have nothing to add.
const TINY: f64 = 1e-6;
/// Permutations that reach the observed statistic after which the test stops.
const ENOUGH: usize = 20;

/// Shares of the level that the looks at an ordered column have.
const SUM_SHARE: f64 = 0.35;
const HALF_LINE_SHARE: f64 = 0.15;
const INTERVAL_SHARE: f64 = 0.3;
const MISSING_SHARE: f64 = 0.2;
/// Shares of the looks at categories.
const PEARSON_SHARE: f64 = 0.4;
const CATEGORY_SHARE: f64 = 0.4;
/// Half-lines are dependent: about this many are independent.
const HALF_LINES: f64 = 8.0;

/// Consecutive bins from the first to before the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub from: usize,
    pub to: usize,
}

/// Spans of bins: half-lines, and intervals of dyadic lengths that overlap by half.
pub(super) fn spans(bins: usize) -> (Vec<Span>, Vec<Vec<Span>>) {
    let half_lines = (1..bins).map(|to| Span { from: 0, to }).collect();
    let mut levels = Vec::new();
    let mut length = 1;
    while 2 * length < bins {
        let inner = (1..bins).step_by((length / 2).max(1)).map(|from| Span { from, to: from + length });
        // Spans at the ends are half-lines.
        levels.push(inner.take_while(|s| s.to < bins).collect());
        length *= 2;
    }
    (half_lines, levels)
}

/// A span or category with the constant part of its likelihood ratio and its penalty.
struct Look {
    span: Span,
    total: u64,
    constant: f64,
    penalty: f64,
}

/// What the statistic needs of a column, whichever rows are in the first table.
struct Statistic<'a> {
    tables: &'a LogTables,
    ordered: bool,
    rows: u64,
    present: u64,
    totals: Vec<u64>,
    looks: Vec<Look>,
}

impl<'a> Statistic<'a> {
    fn new(binned: &Binned, tables: &'a LogTables) -> Self {
        let totals = binned.totals();
        let present: u64 = totals.iter().sum();
        let rows = present + binned.missing[0] + binned.missing[1];
        let look = |span: Span, penalty: f64| {
            let total: u64 = totals[span.from..span.to].iter().sum();
            let constant = tables.k_ln_k(total) + tables.k_ln_k(present - total);
            Look { span, total, constant, penalty }
        };
        let bins = totals.len();
        let looks: Vec<Look> = if binned.ordered {
            let (half_lines, levels) = spans(bins);
            let count = levels.len() as f64;
            let intervals = levels.into_iter().flat_map(|level| {
                let penalty = (count * level.len() as f64 / INTERVAL_SHARE).ln();
                level.into_iter().map(move |span| (span, penalty))
            });
            let half_lines = half_lines.into_iter().map(|span| (span, (HALF_LINES / HALF_LINE_SHARE).ln()));
            half_lines.chain(intervals).map(|(span, penalty)| look(span, penalty)).collect()
        } else {
            let penalty = (bins as f64 / CATEGORY_SHARE).ln();
            (0..if bins > 1 { bins } else { 0 }).map(|b| look(Span { from: b, to: b + 1 }, penalty)).collect()
        };
        Statistic { tables, ordered: binned.ordered, rows, present, totals, looks }
    }

    /// The statistic where the first table has these rows in each bin and this many missing values.
    fn value(&self, counts: &[u64], missing: u64, prefix: &mut Vec<u64>) -> f64 {
        let mut best = self.missing_evidence(counts, missing);
        let first: u64 = counts.iter().sum();
        let second = self.present - first;
        if first == 0 || second == 0 {
            return best;
        }
        prefix.clear();
        prefix.push(0);
        prefix.extend(counts.iter().scan(0, |sum, c| {
            *sum += c;
            Some(*sum)
        }));
        best = best.max(if self.ordered { self.anderson_darling(prefix, first) } else { self.pearson(counts, first) });
        let f = |k| self.tables.k_ln_k(k);
        let margins = f(first) + f(second) - f(self.present);
        for look in &self.looks {
            let a = prefix[look.span.to] - prefix[look.span.from];
            let b = look.total - a;
            let ratio = f(a) + f(b) + f(first - a) + f(second - b) - look.constant - margins;
            best = best.max(ratio - look.penalty);
        }
        best
    }

    fn missing_evidence(&self, counts: &[u64], missing: u64) -> f64 {
        let all_missing = self.rows - self.present;
        let first = counts.iter().sum::<u64>() + missing;
        if all_missing == 0 || self.present == 0 {
            return f64::NEG_INFINITY;
        }
        let f = |k| self.tables.k_ln_k(k);
        let (b, second) = (all_missing - missing, self.rows - first);
        let ratio = f(missing) + f(b) + f(first - missing) + f(second - b) + f(self.rows)
            - f(all_missing)
            - f(self.present)
            - f(first)
            - f(second);
        ratio + MISSING_SHARE.ln()
    }

    /// Σ wⱼ zⱼ² over half-lines with the weights of their last bins, as −ln p.
    fn anderson_darling(&self, prefix: &[u64], first: u64) -> f64 {
        let (n, all) = (first as f64, self.present as f64);
        let scale = all * all * (all - 1.0) / (n * (all - n));
        let (mut below, mut sum) = (0.0, 0.0);
        for (j, total) in self.totals[..self.totals.len() - 1].iter().enumerate() {
            below += *total as f64;
            let deviation = prefix[j + 1] as f64 - n * below / all;
            sum += *total as f64 / all * deviation * deviation * scale / (below * (all - below));
        }
        // The tail of the limit distribution, fitted between p = 0.2 and 0.001.
        1.1 * sum + 0.3 + SUM_SHARE.ln()
    }

    /// Pearson's statistic as −ln p.
    fn pearson(&self, counts: &[u64], first: u64) -> f64 {
        let (n, all) = (first as f64, self.present as f64);
        let term = |(count, total): (&u64, &u64)| {
            let expected = n * *total as f64 / all;
            (*count as f64 - expected).powi(2) / expected
        };
        let sum: f64 = counts.iter().zip(&self.totals).map(term).sum::<f64>() * (all - 1.0) / (all - n);
        let degrees = (self.totals.len() as f64 - 1.0).max(1.0);
        -chi_squared_tail(sum, degrees).max(1e-300).ln() + PEARSON_SHARE.ln()
    }

    /// A bound on the p-value that needs no permutations: the smallest tail bound of all looks times their number.
    fn bound(&self, counts: &[u64], missing: u64) -> f64 {
        let first: u64 = counts.iter().sum();
        let looks = self.looks.iter().map(|look| {
            let a: u64 = counts[look.span.from..look.span.to].iter().sum();
            tail_exponent(a, look.total, first, self.present)
        });
        let all_missing = self.rows - self.present;
        let of_missing = tail_exponent(missing, all_missing, first + missing, self.rows);
        let largest = looks.chain([of_missing]).fold(0.0, f64::max);
        (2.0 * (self.looks.len() + 1) as f64 * (-largest).exp()).min(1.0)
    }
}

/// The exponent of a bound on P(at least `hits` of `draws` rows), or at most, where `good` of `all` rows are hits.
///
/// The bound of Hoeffding (1963) for draws with replacement holds without replacement too, and for each of the four ways
/// to look at the two-by-two table.
fn tail_exponent(hits: u64, good: u64, draws: u64, all: u64) -> f64 {
    let exponent = |hits: u64, draws: u64, good: u64| {
        if draws == 0 || good == 0 || good == all {
            return 0.0;
        }
        let (n, p, q) = (draws as f64, hits as f64 / draws as f64, good as f64 / all as f64);
        let part = |p: f64, q: f64| if p > 0.0 { p * (p / q).ln() } else { 0.0 };
        n * (part(p, q) + part(1.0 - p, 1.0 - q))
    };
    [
        exponent(hits, draws, good),
        exponent(good - hits, all - draws, good),
        exponent(hits, good, draws),
        exponent(draws - hits, all - good, draws),
    ]
    .into_iter()
    .fold(0.0, f64::max)
}

/// Permutations that resolve the level of one of many columns.
pub(super) fn permutations(columns: usize, alpha: f64) -> usize {
    /// The level of a column is about a third of alpha over the number of columns.
    const PART: f64 = 3.0;
    ((PART * columns as f64 / alpha.max(1e-9)) as usize).clamp(PERMUTATIONS[0], PERMUTATIONS[1])
}

/// The p-value of the hypothesis that a column has one distribution in both tables.
pub(super) fn p_value(binned: &Binned, tables: &LogTables, permutations: usize, seed: u64) -> f64 {
    let statistic = Statistic::new(binned, tables);
    let rows: [u64; 2] = std::array::from_fn(|t| binned.counts[t].iter().sum::<u64>() + binned.missing[t]);
    if rows[0] == 0 || rows[1] == 0 || (statistic.looks.is_empty() && binned.missing == [0, 0]) {
        return 1.0;
    }
    let bound = statistic.bound(&binned.counts[0], binned.missing[0]);
    if bound <= TINY {
        return bound;
    }
    let mut prefix = Vec::new();
    let observed = statistic.value(&binned.counts[0], binned.missing[0], &mut prefix);
    let totals: Vec<u64> = statistic.totals.iter().copied().chain([statistic.rows - statistic.present]).collect();
    let mut counts = vec![0; totals.len()];
    let mut rng = Generator::seed_from_u64(seed);
    // Statistics that are equal but for rounding are equal.
    let reached = observed - 1e-9 * observed.abs();
    let mut as_large = 0;
    for drawn in 1..=permutations {
        draw_counts(&totals, rows[0], tables, &mut rng, &mut counts);
        let (bins, missing) = counts.split_at(totals.len() - 1);
        if statistic.value(bins, missing[0], &mut prefix) >= reached {
            as_large += 1;
            if as_large == ENOUGH {
                return ENOUGH as f64 / drawn as f64;
            }
        }
    }
    match as_large {
        0 => bound.min(1.0 / (permutations + 1) as f64),
        k => (k + 1) as f64 / (permutations + 1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    fn test(a: &[f64], b: &[f64], seed: u64) -> f64 {
        p_value(&Binned::ordered([a, b]), &LogTables::new((a.len() + b.len()) as u64), 999, seed)
    }

    fn draw(rng: &mut Generator, n: usize) -> Vec<f64> {
        (0..n).map(|_| rng.random::<f64>()).collect()
    }

    #[test]
    fn p_values_are_uniform_for_samples_of_one_distribution() {
        let mut rng = Generator::seed_from_u64(11);
        let mut p_values: Vec<f64> = (0..400)
            .map(|i| {
                // Continuous, discrete and partly missing values.
                let value = |x: f64| match i % 3 {
                    0 => x,
                    1 => (8.0 * x * x).floor(),
                    _ if x < 0.1 => f64::NAN,
                    _ => x,
                };
                let mut sample = |n| draw(&mut rng, n).into_iter().map(value).collect::<Vec<f64>>();
                test(&sample(150), &sample(300), i)
            })
            .collect();
        p_values.sort_by(f64::total_cmp);
        for level in [0.01, 0.05, 0.2, 0.5] {
            let share = p_values.partition_point(|p| *p <= level) as f64 / 400.0;
            let limit = level + 3.5 * (level * (1.0 - level) / 400.0).sqrt();
            assert!(share <= limit, "{level}: {share}");
        }
        assert!(p_values.partition_point(|p| *p <= 0.5) > 130, "far too few small p-values");
    }

    #[test]
    fn changes_of_all_kinds_have_small_p_values() {
        let mut rng = Generator::seed_from_u64(2);
        let base = draw(&mut rng, 2000);
        let other = draw(&mut rng, 2000);
        let change =
            |f: &dyn Fn(usize, f64) -> f64| -> Vec<f64> { other.iter().enumerate().map(|(i, x)| f(i, *x)).collect() };
        for (name, changed) in [
            ("shift", change(&|_, x| x + 0.05)),
            ("scale", change(&|_, x| 0.5 + 1.15 * (x - 0.5))),
            ("values that pile up", change(&|i, x| if i % 50 == 0 { 0.4 } else { x })),
            ("missing", change(&|i, x| if i % 60 == 0 { f64::NAN } else { x })),
            ("gap", change(&|_, x| if (0.5..0.52).contains(&x) { x + 0.3 } else { x })),
            ("tail", change(&|i, x| if i % 80 == 0 { 5.0 + x } else { x })),
        ] {
            assert!(test(&base, &changed, 0) <= 0.001, "{name}: {}", test(&base, &changed, 0));
        }
        assert!(test(&base, &other, 0) > 0.01);
        // Far beyond the resolution of the permutations.
        assert!(test(&base, &change(&|_, x| x + 2.0), 0) < 1e-100);
    }

    #[test]
    fn bounds_are_no_smaller_than_exact_tails() {
        let tables = LogTables::new(200);
        let ln_choose = |n: u64, k: u64| tables.ln_factorial(n) - tables.ln_factorial(k) - tables.ln_factorial(n - k);
        for (good, draws, all) in [(10, 50, 100), (60, 30, 200), (3, 100, 150)] {
            for hits in 0..=good.min(draws) {
                let p = |k: u64| (ln_choose(good, k) + ln_choose(all - good, draws - k) - ln_choose(all, draws)).exp();
                let (below, above): (f64, f64) = ((0..=hits).map(p).sum(), (hits..=good.min(draws)).map(p).sum());
                let bound = (-tail_exponent(hits, good, draws, all)).exp();
                assert!(below.min(above) <= bound * (1.0 + 1e-9), "{hits} of {good}, {draws} of {all}");
            }
        }
    }
}
