//! Random permutations of rows, drawn as counts.
//!
//! A permutation assigns n of N rows to the first table. Statistics of a column depend on the counts of its bins only.
//! These have the multivariate hypergeometric distribution. It is drawn bin by bin, so that the cost of a permutation
//! does not depend on the number of rows.

use rand::RngExt;

use super::log_tables::LogTables;
use crate::random::Generator;

/// Draws the counts of the first table, for bins with these totals.
pub(super) fn draw_counts(totals: &[u64], first: u64, tables: &LogTables, rng: &mut Generator, counts: &mut [u64]) {
    let mut rest: u64 = totals.iter().sum();
    let mut open = first;
    for (total, count) in totals.iter().zip(counts) {
        *count = hypergeometric(*total, rest - total, open, tables, rng);
        rest -= total;
        open -= *count;
    }
}

/// Successes among `draws` rows, drawn without replacement from `good` and `bad` ones.
fn hypergeometric(good: u64, bad: u64, draws: u64, tables: &LogTables, rng: &mut Generator) -> u64 {
    if good == 0 || draws == 0 {
        return 0;
    }
    if bad == 0 {
        return draws;
    }
    // Symmetries: the rarer kind is counted, in the smaller of the drawn and the remaining rows.
    let all = good + bad;
    let (rare, few) = (good.min(bad), draws.min(all - draws));
    let drawn = match few as f64 * rare as f64 / (all as f64) < MAX_INVERSION_MEAN {
        true => by_inversion(rare, all - rare, few, tables, rng),
        false => by_rejection(rare, all - rare, few, tables, rng),
    };
    let of_good = if good <= bad { drawn } else { few - drawn };
    if draws == few { of_good } else { good - of_good }
}

/// Up to this mean, the sum of probabilities from zero is short.
const MAX_INVERSION_MEAN: f64 = 8.0;

fn by_inversion(good: u64, bad: u64, draws: u64, tables: &LogTables, rng: &mut Generator) -> u64 {
    let ln = |k| tables.ln_factorial(k);
    // Draws may exceed the bad rows only if the mean is large.
    let least = draws.saturating_sub(bad);
    let ln_choose = |n, k| ln(n) - ln(k) - ln(n - k);
    let ln_first = ln_choose(good, least) + ln_choose(bad, draws - least) - ln_choose(good + bad, draws);
    let (mut k, mut probability) = (least, ln_first.exp());
    let mut uniform: f64 = rng.random();
    while uniform > probability && k < good.min(draws) {
        uniform -= probability;
        let ratio = (good - k) as f64 * (draws - k) as f64 / ((k + 1) as f64 * (bad + k + 1 - draws) as f64);
        probability *= ratio;
        k += 1;
    }
    k
}

/// The ratio of uniforms (Stadlober 1990): a rectangle around the transformed probabilities, and rejection.
fn by_rejection(good: u64, bad: u64, draws: u64, tables: &LogTables, rng: &mut Generator) -> u64 {
    /// 2·√(2/e) and 3 − 2·√(3/e): the width of the rectangle.
    const WIDTH: [f64; 2] = [1.715_527_769_921_413_5, 0.898_916_162_058_898_8];
    let all = (good + bad) as f64;
    let share = good as f64 / all;
    let mean = draws as f64 * share + 0.5;
    let variance = (all - draws as f64) * draws as f64 * share * (1.0 - share) / (all - 1.0);
    let width = WIDTH[0] * (variance + 0.5).sqrt() + WIDTH[1];
    let weight = |k: u64| {
        let ln = |k| tables.ln_factorial(k);
        -(ln(k) + ln(good - k) + ln(draws - k) + ln(bad + k - draws))
    };
    let mode = ((draws + 1) as f64 * (good + 1) as f64 / (all + 2.0)) as u64;
    let at_mode = weight(mode.clamp(draws.saturating_sub(bad), good.min(draws)));
    let end = (good.min(draws) + 1) as f64;
    loop {
        let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
        let x = mean + width * (v - 0.5) / u;
        if x < draws.saturating_sub(bad) as f64 || x >= end {
            continue;
        }
        let k = x as u64;
        let log_ratio = weight(k) - at_mode;
        // Squeezes on both sides of the logarithm.
        if u * (4.0 - u) - 3.0 <= log_ratio {
            return k;
        }
        if u * (u - log_ratio) < 1.0 && 2.0 * u.ln() <= log_ratio {
            return k;
        }
    }
}

/// Places of at most `max` rows, drawn at random: every other row would favour those of a periodic order.
pub(super) fn drawn_rows(rows: usize, max: usize, rng: &mut Generator) -> Vec<u32> {
    if rows <= max {
        return (0..rows as u32).collect();
    }
    let mut drawn: Vec<u32> = rand::seq::index::sample(rng, rows, max).iter().map(|row| row as u32).collect();
    drawn.sort_unstable();
    drawn
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn draws_have_the_probabilities_of_the_hypergeometric_distribution() {
        let mut rng = Generator::seed_from_u64(3);
        for (good, bad, draws) in [(5, 7, 6), (40, 60, 50), (600, 500, 700), (3, 5000, 2500), (90, 20, 60), (1, 1, 1)] {
            let tables = LogTables::new(good + bad);
            let ln_choose = |n, k| tables.ln_factorial(n) - tables.ln_factorial(k) - tables.ln_factorial(n - k);
            let mut counts = vec![0u64; good as usize + 1];
            const DRAWS: usize = 40_000;
            (0..DRAWS).for_each(|_| counts[hypergeometric(good, bad, draws, &tables, &mut rng) as usize] += 1);
            let (mut chi_squared, mut cells) = (0.0, 0.0);
            for k in draws.saturating_sub(bad)..=good.min(draws) {
                let p = (ln_choose(good, k) + ln_choose(bad, draws - k) - ln_choose(good + bad, draws)).exp();
                let expected = DRAWS as f64 * p;
                if expected > 5.0 {
                    chi_squared += (counts[k as usize] as f64 - expected).powi(2) / expected;
                    cells += 1.0;
                }
            }
            assert!(
                chi_squared < cells + 4.0 * f64::sqrt(2.0 * cells) + 4.0,
                "{good} {bad} {draws}: {chi_squared} of {cells}"
            );
        }
    }

    #[test]
    fn counts_of_all_bins_add_up() {
        let (totals, mut counts) = ([3, 0, 500, 17, 1], [0; 5]);
        let (tables, mut rng) = (LogTables::new(521), Generator::seed_from_u64(1));
        for first in [0, 1, 200, 521] {
            draw_counts(&totals, first, &tables, &mut rng, &mut counts);
            assert_eq!(counts.iter().sum::<u64>(), first);
            assert!(counts.iter().zip(&totals).all(|(c, t)| c <= t));
        }
    }
}
