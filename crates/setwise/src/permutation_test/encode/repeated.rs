//! Indicators of values that many rows share: time-outs, sentinels, zeros.

use super::Encode;

/// The most frequent values of each column.
pub struct RepeatedValues<'a> {
    data: &'a [f64],
    dim: usize,
    /// Column and value.
    values: Vec<(usize, f64)>,
}

impl<'a> RepeatedValues<'a> {
    /// Values of row-major numbers that a share of the rows has, the most frequent of each column.
    pub fn new(data: &'a [f64], dim: usize) -> Self {
        /// Least share and least number of rows of a value.
        const LEAST: (f64, usize) = (0.005, 4);
        /// Most values of a column.
        const MOST: usize = 8;
        let rows = data.len() / dim;
        let least = ((LEAST.0 * rows as f64) as usize).max(LEAST.1);
        let of_column = |c: usize| {
            let mut column: Vec<f64> = data.iter().skip(c).step_by(dim).copied().collect();
            column.sort_unstable_by(f64::total_cmp);
            let equal = column.chunk_by(|a, b| a == b).filter(|equal| equal.len() >= least && equal.len() < rows);
            let mut counts: Vec<(usize, f64)> = equal.map(|equal| (equal.len(), equal[0])).collect();
            counts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
            counts.truncate(MOST);
            counts.into_iter().map(move |(_, value)| (c, value))
        };
        RepeatedValues { data, dim, values: (0..dim).flat_map(of_column).collect() }
    }

    /// The column that a value is of.
    pub fn column(&self, value: usize) -> usize {
        self.values[value].0
    }
}

impl Encode for RepeatedValues<'_> {
    fn width(&self) -> usize {
        self.values.len()
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        let row = &self.data[row * self.dim..(row + 1) * self.dim];
        for (x, (c, value)) in out.iter_mut().zip(&self.values) {
            *x = if row[*c] == *value { 1.0 } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_values_have_an_indicator() {
        let data: Vec<f64> = (0..400).map(|i| if i % 20 == 3 { 30.0 } else { f64::from(i) }).collect();
        let found = RepeatedValues::new(&data, 2);
        assert_eq!((found.width(), found.column(0)), (1, 1));
        let mut out = [9.0];
        found.encode(1, &mut out);
        assert_eq!(out, [1.0]);
        found.encode(2, &mut out);
        assert_eq!(out, [0.0]);
    }
}
