//! Rows and identifiers that repeat within a table.

use std::hash::{BuildHasher, Hasher};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use setwise_table::{Column, Text, Values};

use crate::random::Generator;

/// Splits of the groups of equal rows.
const SPLITS: usize = 999;
/// Splits that reach the observed difference after which the test stops.
const ENOUGH: usize = 20;
/// In tables with a larger share of repeated rows, repetitions are no sign of copies.
const MAX_SHARE: f64 = 0.5;

/// Rows that repeat an earlier one of their table.
pub(super) struct Repeats {
    /// Their number in each table.
    pub counts: [u64; 2],
    /// The p-value of equal chances to repeat.
    pub p_value: f64,
}

/// A number for each row that equal rows share.
pub(super) fn row_keys(columns: &[&Column], rows: usize) -> Vec<u64> {
    // Rows of both tables must have equal keys in every run: the seed is fixed.
    let hasher = Fixed;
    let mut keys = vec![0u64; rows];
    for column in columns {
        let mix = |key: &mut u64, value: u64| *key = splitmix(*key ^ value);
        match &column.values {
            Values::Numbers(v) | Values::Times(v) => {
                // NaN and the two zeros have one key each.
                let bits = |x: f64| if x.is_nan() { u64::MAX } else { (x + 0.0).to_bits() };
                keys.iter_mut().zip(v).for_each(|(key, x)| mix(key, bits(*x)));
            }
            Values::Text(text) => {
                let levels: Vec<u64> = text.levels.iter().map(|level| hasher.hash_one(level)).collect();
                let of = |code: u32| if code == Text::MISSING { 1 } else { levels[code as usize] };
                keys.iter_mut().zip(&text.codes).for_each(|(key, code)| mix(key, of(*code)));
            }
        }
    }
    keys
}

/// Compares how often rows of two tables repeat; `None` where nearly all rows do, or none.
pub(super) fn repeats(keys: [&[u64]; 2], seed: u64) -> Option<Repeats> {
    let mut all: Vec<(u64, bool)> =
        keys.iter().enumerate().flat_map(|(t, keys)| keys.iter().map(move |key| (*key, t == 1))).collect();
    all.sort_unstable();
    // Tables of the rows of all groups, group after group.
    let mut tables: Vec<bool> = Vec::new();
    let mut sizes = Vec::new();
    for group in all.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
        tables.extend(group.iter().map(|row| row.1));
        sizes.push(group.len());
    }
    let rows = [keys[0].len(), keys[1].len()];
    if tables.is_empty() || tables.len() as f64 > MAX_SHARE * all.len() as f64 {
        return None;
    }
    let counts = repeated(&tables, &sizes);
    let difference = |counts: [u64; 2]| (counts[1] as f64 / rows[1] as f64 - counts[0] as f64 / rows[0] as f64).abs();
    let observed = difference(counts) - 1e-12;
    // A permutation gives the repeated rows a random sample of the tables of all rows.
    let mut rng = Generator::seed_from_u64(seed);
    let mut pool: Vec<bool> = all.iter().map(|row| row.1).collect();
    let (mut as_large, mut split) = (0, 0);
    while split < SPLITS && as_large < ENOUGH {
        let (drawn, _) = pool.partial_shuffle(&mut rng, tables.len());
        as_large += usize::from(difference(repeated(drawn, &sizes)) >= observed);
        split += 1;
    }
    let p_value =
        if as_large == ENOUGH { ENOUGH as f64 / split as f64 } else { (as_large + 1) as f64 / (SPLITS + 1) as f64 };
    Some(Repeats { counts, p_value })
}

/// Rows of each table beyond the first of their group.
fn repeated(tables: &[bool], sizes: &[usize]) -> [u64; 2] {
    let (mut rest, mut counts) = (tables, [0; 2]);
    for size in sizes {
        let (group, others) = rest.split_at(*size);
        let second = group.iter().filter(|t| **t).count() as u64;
        counts[0] += (*size as u64 - second).saturating_sub(1);
        counts[1] += second.saturating_sub(1);
        rest = others;
    }
    counts
}

/// Repeated values of two columns, counted in equally many rows: longer columns repeat more.
pub(super) struct EqualSizes {
    pub counts: [u64; 2],
    /// Rows of each column.
    pub rows: usize,
    pub p_value: f64,
}

/// Compares how often values of two columns repeat; `None` where none do, or nearly all.
pub(super) fn repeats_of_equal_sizes(mut keys: [Vec<u64>; 2], seed: u64) -> Option<EqualSizes> {
    let rows = keys[0].len().min(keys[1].len());
    let mut rng = Generator::seed_from_u64(seed);
    for keys in &mut keys {
        if keys.len() > rows {
            *keys = keys.partial_shuffle(&mut rng, rows).0.to_vec();
        }
    }
    let found = repeats([&keys[0], &keys[1]], seed)?;
    Some(EqualSizes { counts: found.counts, rows, p_value: found.p_value })
}

/// A number for each value of a column that is not missing.
pub(super) fn value_keys(column: &Column) -> Vec<u64> {
    let keys = row_keys(&[column], column.len());
    let present = |i: usize| match &column.values {
        Values::Numbers(v) | Values::Times(v) => !v[i].is_nan(),
        Values::Text(text) => text.codes[i] != Text::MISSING,
    };
    keys.into_iter().enumerate().filter(|(i, _)| present(*i)).map(|(_, key)| key).collect()
}

fn splitmix(x: u64) -> u64 {
    setwise_engine::splitmix64(x)
}

/// FNV-1a, finished by a mix: the same in every run.
struct Fixed;

impl BuildHasher for Fixed {
    type Hasher = Fnv;
    fn build_hasher(&self) -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    }
    fn finish(&self) -> u64 {
        splitmix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_rows_of_one_table_have_a_small_p_value() {
        let a = Column::numbers("x", (0..1000).map(f64::from).collect());
        let b = Column::numbers("x", (0..1000).map(|i| f64::from(if i < 20 { 990 - i } else { i + 5000 })).collect());
        let c = Column::numbers("x", (0..1000).map(|i| f64::from(5000 + i - i % 100 / 98)).collect());
        let keys = |column: &Column| row_keys(&[column], 1000);
        let (a, b, c) = (keys(&a), keys(&b), keys(&c));
        // Rows that both tables have are no repetitions.
        let shared = repeats([&a, &b], 0).unwrap();
        assert_eq!(shared.counts, [0, 0]);
        assert_eq!(shared.p_value, 1.0);
        let copied = repeats([&a, &c], 0).unwrap();
        assert!(copied.counts == [0, 10] && copied.p_value < 0.02, "{:?} {}", copied.counts, copied.p_value);
        assert!(repeats([&a, &a], 0).is_none());
        assert!(repeats([&a[..500], &a[500..]], 0).is_none());
    }

    #[test]
    fn values_are_counted_in_equally_many_rows() {
        let column = Column::text("id", [Some("a"), None, Some("b"), Some("a"), None]);
        let keys = value_keys(&column);
        assert!(keys.len() == 3 && keys[0] == keys[2] && keys[0] != keys[1]);
        let zeros = value_keys(&Column::numbers("id", vec![0.0, -0.0, f64::NAN]));
        assert!(zeros.len() == 2 && zeros[0] == zeros[1]);
        // Of 20,000 customers, 10,000 orders name more than once many more than 500 orders do.
        let orders = |n: u64, seed: u64| (0..n).map(|i| splitmix(seed + i) % 20_000).collect::<Vec<u64>>();
        let found = repeats_of_equal_sizes([orders(10_000, 1), orders(500, 50_000)], 0).unwrap();
        assert!(found.rows == 500 && found.p_value > 0.01, "{:?} {}", found.counts, found.p_value);
        let copies = orders(500, 90_000).into_iter().chain(orders(100, 90_000)).collect();
        let found = repeats_of_equal_sizes([orders(500, 1), copies], 0).unwrap();
        assert!(found.p_value < 0.01, "{:?} {}", found.counts, found.p_value);
    }
}
