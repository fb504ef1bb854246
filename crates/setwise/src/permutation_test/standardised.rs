//! Columns of mean zero and variance one.

use rayon::prelude::*;

/// Rows whose columns have mean zero and variance one.
pub(super) struct Standardised {
    pub data: Vec<f64>,
    pub dim: usize,
    /// The first constant column, counted from one.
    pub constant: Option<usize>,
}

impl Standardised {
    pub fn new(mut data: Vec<f64>, dim: usize) -> Self {
        let rows = (data.len() / dim) as f64;
        let mut constant = None;
        for c in 0..dim {
            let column = |data: &[f64]| data.iter().skip(c).step_by(dim).copied().collect::<Vec<f64>>();
            let values = column(&data);
            // Numbers are divided by the largest first: squares of very large or very small numbers are not
            // representable.
            let largest = values.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
            let scaled = |x: f64| if largest > 0.0 { x / largest } else { 0.0 };
            let mean = values.iter().map(|&x| scaled(x)).sum::<f64>() / rows;
            let variance = values.iter().map(|&x| (scaled(x) - mean).powi(2)).sum::<f64>() / rows;
            let is_constant = values.iter().all(|&x| x == values[0]);
            constant = constant.or(is_constant.then_some(c + 1));
            let scale = if is_constant { 0.0 } else { 1.0 / variance.sqrt() };
            for x in data.iter_mut().skip(c).step_by(dim) {
                *x = (scaled(*x) - mean) * scale;
            }
        }
        Standardised { data, dim, constant }
    }

    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.dim..(i + 1) * self.dim]
    }
}

/// All rows in the order of their numbers, which does not depend on the samples they are from.
pub(super) fn sorted_rows(data: &[f64], dim: usize) -> Vec<u32> {
    let row = |i: u32| &data[i as usize * dim..(i as usize + 1) * dim];
    let mut order: Vec<u32> = (0..(data.len() / dim) as u32).collect();
    let compare = |a: &u32, b: &u32| {
        let numbers = row(*a).iter().zip(row(*b));
        numbers.map(|(x, y)| x.total_cmp(y)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    };
    order.par_sort_unstable_by(compare);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_variance_one_and_constant_columns_become_zero() {
        let standardised = Standardised::new(vec![1e300, 5.0, -1e300, 5.0, 1e300, 5.0, -1e300, 5.0], 2);
        assert_eq!(standardised.data, [1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0]);
        assert_eq!(standardised.constant, Some(2));
    }
}
