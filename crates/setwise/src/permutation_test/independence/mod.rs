//! Tests of independence: do the columns X tell anything about the columns Y?
//!
//! Each side has columns of its own, which do not know how rows are paired. A statistic is quadratic in the products of
//! the columns of X with those of Y, summed over rows. A permutation of the rows of Y costs one matrix product.

mod columns;
mod products;

use rayon::prelude::*;
use setwise_engine::splitmix64;

use super::encode::{Bumps, RankCosines, Ranks, Shape, Stored, bandwidths, radius_cosines, whitened};
use super::result::{Aspect, Finding, Question, TestResult};
use super::sequential::{Comparison, strongest};
use super::standardised::{Standardised, sorted_rows};
use super::{PermutationTest, unpaired};
use crate::Result;
use crate::estimate::{Dim, Points, Progress};
use columns::{Columns, Scale};
use products::{Pairing, Products, Reduction};

impl PermutationTest {
    /// Tests whether X and Y are independent; row i of X belongs to row i of Y. It tells `progress` how far it is.
    pub fn independence(&self, x: Points, y: Points, progress: &Progress) -> Result<TestResult> {
        if x.len() != y.len() {
            return Err(unpaired(x, y));
        }
        self.check(&[x, y], "a test of independence")?;
        let rows = x.subsample(self.max_rows, self.seed);
        let mut warnings = Vec::new();
        if rows.len() < x.len() {
            warnings.push(format!("{} of {} rows are used, drawn at random", rows.len(), x.len()));
        }
        let of_side = |points: Points, which: u64| Side::new(points, &rows, splitmix64(self.seed ^ which));
        let sides = [of_side(x, 1), of_side(y, 2)];
        for (side, points) in sides.iter().zip([x, y]) {
            warnings.extend(side.warnings(points));
        }
        let assignments: f64 = (1..=rows.len().min(20)).map(|k| k as f64).product();
        if assignments <= self.permutations as f64 {
            warnings.push(format!(
                "there are only {assignments} ways to pair so few rows: no p-value is much below {:.3}",
                1.0 / assignments
            ));
        }
        let (products, components) = components(&sides);
        let weights: Vec<f64> = components.iter().map(|c| c.weight).collect();
        let pairing = Pairing { rows: rows.len(), seed: splitmix64(self.seed ^ 3) };
        let values = |from: usize, count: usize| -> Vec<Vec<f64>> {
            let of_permutation = |permutation: usize| -> Vec<f64> {
                let order = pairing.order(permutation);
                let of_columns: Vec<Vec<f32>> = products.iter().map(|p| p.of(&order)).collect();
                let value = |c: &Component| products[c.products].value(&of_columns[c.products], &c.reduction);
                components.iter().map(value).collect()
            };
            let all: Vec<Vec<f64>> = (from..from + count).into_par_iter().map(of_permutation).collect();
            (0..components.len()).map(|c| all.iter().map(|values| values[c]).collect()).collect()
        };
        let comparison = Comparison { permutations: self.permutations, alpha: self.alpha };
        let compared = comparison.run(&weights, values, progress);
        let observed = pairing.order(0);
        let pair = |component: &Component| -> Vec<usize> {
            let products = &products[component.products];
            products.largest(&products.of(&observed), &component.reduction).map_or(Vec::new(), |pair| pair.to_vec())
        };
        let found = strongest(&compared, components.iter().map(|c| (c.aspect, pair(c))));
        let name = |points: Points, side: &Side, c: usize, letter: char| {
            let column = side.chosen[c];
            points.column_name(column).unwrap_or_else(|| format!("{letter}{}", column + 1))
        };
        let finding = |(aspect, columns, p_value): (Aspect, Vec<usize>, f64)| Finding {
            aspect,
            columns: match columns.as_slice() {
                &[a, b] => vec![name(x, &sides[0], a, 'x'), name(y, &sides[1], b, 'y')],
                _ => Vec::new(),
            },
            p_value,
        };
        Ok(TestResult {
            quantity: Question::Independence,
            p_value: compared.p_value,
            alpha: self.alpha,
            significant: compared.p_value <= self.alpha,
            statistic: compared.evidence,
            auc: None,
            interval: None,
            permutations: compared.permutations,
            as_large: compared.as_large,
            n: vec![x.len()],
            dim: Dim::Two([x.dim(), y.dim()]),
            method: "adaptive".to_owned(),
            findings: found.into_iter().map(finding).collect(),
            pairs: Vec::new(),
            warnings,
        })
    }
}

/// A statistic of the test.
struct Component {
    aspect: Aspect,
    /// Its p-value counts as if divided by this weight.
    weight: f64,
    /// The products it is of.
    products: usize,
    reduction: Reduction,
}

/// Columns that each statistic takes from a side.
struct Side {
    dim: usize,
    constant: Option<usize>,
    /// The columns that are looked at one by one.
    chosen: Vec<usize>,
    scores: Columns,
    whitened_scores: Columns,
    cosines: Columns,
    orders: usize,
    radius: Columns,
    shape: Columns,
    fine: Columns,
    /// Smooth kernels.
    kernels: [Columns; 3],
}

/// Columns of a side that are looked at one by one; of more some are drawn at random.
const MAX_COLUMNS: usize = 128;

impl Side {
    fn new(points: Points, rows: &[usize], seed: u64) -> Self {
        /// Frequencies of a column, fewer where there are many columns.
        const ORDERS: usize = 8;
        const MAX_COSINES: usize = 128;
        /// Ridges of whitened columns as shares of their mean variance.
        const RIDGES: [f64; 3] = [0.01, 0.03, 0.3];
        let dim = points.dim();
        let raw = points.select(rows);
        let pooled = Standardised::new(raw.clone(), dim);
        let ranks = Ranks::new(&raw, dim);
        let scores = ranks.normal_scores();
        let chosen = Points::new(&vec![0.0; dim], 1).subsample(MAX_COLUMNS, seed);
        let take = |values: &[f32]| Stored {
            values: values.chunks_exact(dim).flat_map(|row| chosen.iter().map(|&c| row[c])).collect(),
            width: chosen.len(),
        };
        let few = Ranks { shares: take(&ranks.shares).values, dim: chosen.len() };
        let orders = (MAX_COSINES / chosen.len()).clamp(1, ORDERS);
        let of_scores = take(&scores);
        let plain: Vec<f32> = pooled.data.iter().map(|x| *x as f32).collect();
        let radius = match dim <= MAX_COLUMNS {
            true => radius_cosines(&whitened(&pooled.data, dim), dim, 3),
            false => radius_cosines(&plain, dim, 3),
        };
        // Shifts of one side go with the spread of the other.
        let with_radius = Stored {
            values: (of_scores.values.chunks_exact(chosen.len()).zip(radius.values.chunks_exact(3)))
                .flat_map(|(scores, radius)| scores.iter().chain(radius))
                .copied()
                .collect(),
            width: chosen.len() + 3,
        };
        let order = sorted_rows(&raw, dim);
        // Kernels of some of five widths.
        let bumps = |values: &[f32], shape: Shape, widths: &[usize], centres: usize, scale: Option<Scale>, k: u64| {
            let h = bandwidths::<5>(values, dim, &order, splitmix64(seed ^ (2 * k)));
            let kinds: Vec<_> = widths.iter().map(|&i| (shape, h[i], centres)).collect();
            let bumps = Bumps::new(values, dim, &order, &kinds, splitmix64(seed ^ (2 * k + 1)));
            let scale = scale.unwrap_or_else(|| Scale::Kernel(bumps.rows.clone()));
            Columns::new(&bumps, rows.len(), scale)
        };
        Side {
            dim,
            constant: pooled.constant,
            scores: Columns::new(&of_scores, rows.len(), Scale::Standardised),
            whitened_scores: Columns::new(&of_scores, rows.len(), Scale::Whitened(RIDGES[0])),
            cosines: Columns::new(&RankCosines { ranks: &few, orders }, rows.len(), Scale::Centred),
            orders,
            radius: Columns::new(&with_radius, rows.len(), Scale::Whitened(RIDGES[0])),
            shape: bumps(&scores, Shape::Gaussian, &[0, 1, 2, 3, 4], 16, Some(Scale::Whitened(RIDGES[2])), 1),
            fine: bumps(&plain, Shape::Gaussian, &[1], 64, Some(Scale::Whitened(RIDGES[1])), 2),
            kernels: [
                bumps(&scores, Shape::Gaussian, &[4], 64, None, 3),
                bumps(&plain, Shape::Gaussian, &[4], 64, None, 4),
                bumps(&scores, Shape::Laplace, &[4], 64, None, 5),
            ],
            chosen,
        }
    }

    fn warnings(&self, points: Points) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(column) = self.constant {
            let name = points.column_name(column - 1).unwrap_or_else(|| column.to_string());
            warnings.push(format!("{}: column {name} holds one value only and has no influence", points.name()));
        }
        if self.chosen.len() < self.dim {
            let (name, all) = (points.name(), self.dim);
            warnings.push(format!("{name}: {MAX_COLUMNS} of {all} columns are looked at one by one, drawn at random"));
        }
        warnings
    }
}

/// The products of columns of two sides, and the statistics of them.
fn components(sides: &[Side; 2]) -> (Vec<Products>, Vec<Component>) {
    let (mut products, mut components) = (Vec::new(), Vec::new());
    let mut multiply = |of: &dyn Fn(&Side) -> &Columns| {
        products.push(Products::new(of(&sides[0]), of(&sides[1])));
        products.len() - 1
    };
    let mut add = |aspect: Aspect, weight: f64, products: usize, reduction: Reduction| {
        components.push(Component { aspect, weight, products, reduction });
    };
    let [kx, ky] = sides.each_ref().map(|side| side.orders);
    let weights = |of: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
        (1..=kx).flat_map(|k| (1..=ky).map(move |l| of(k, l))).collect()
    };
    let low = weights(&|k, l| ((k * l) as f64).powi(-2));
    let pair = |weights: Vec<f64>| Reduction::LargestPair { columns: [kx, ky], weights };
    let of_scores = Reduction::LargestPair { columns: [1, 1], weights: vec![1.0] };
    let cosines = multiply(&|s| &s.cosines);
    add(Aspect::Correlation, 1.0, multiply(&|s| &s.scores), of_scores);
    add(Aspect::Dependence, 1.0, cosines, pair(low.clone()));
    add(Aspect::Dependence, 0.5, cosines, pair(weights(&|_, _| 1.0)));
    add(Aspect::Shape, 1.0, multiply(&|s| &s.shape), Reduction::Sum);
    add(Aspect::FineStructure, 0.5, multiply(&|s| &s.fine), Reduction::Sum);
    for k in 0..3 {
        add(Aspect::Shape, 3.0, multiply(&|s| &s.kernels[k]), Reduction::Sum);
    }
    if sides.iter().any(|side| side.dim > 1) {
        add(Aspect::Correlations, 1.0, multiply(&|s| &s.whitened_scores), Reduction::Sum);
        add(Aspect::Dependence, 1.0, cosines, Reduction::PairSum { columns: [kx, ky], weights: low });
        add(Aspect::Radius, 1.0, multiply(&|s| &s.radius), Reduction::Sum);
    }
    (products, components)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::distributions::normal::normal_quantile;
    use crate::random::Generator;

    fn normals(count: usize, seed: u64) -> Vec<f64> {
        let mut rng = Generator::seed_from_u64(seed);
        (0..count).map(|_| normal_quantile(rng.random::<f64>())).collect()
    }

    fn test(x: &[f64], y: &[f64], dims: [usize; 2], permutations: usize) -> TestResult {
        let test = PermutationTest { permutations, ..PermutationTest::default() };
        test.independence(Points::new(x, dims[0]), Points::new(y, dims[1]), &Progress::default()).unwrap()
    }

    #[test]
    fn independent_columns_are_rejected_as_rarely_as_the_level_says() {
        let rejected = (0..200)
            .filter(|&trial| test(&normals(80, 2 * trial), &normals(120, 2 * trial + 1), [2, 3], 99).significant);
        let rejected = rejected.count();
        // Four standard deviations of 200 trials.
        assert!((1..=22).contains(&rejected), "{rejected} of 200");
    }

    #[test]
    fn dependence_of_every_kind_is_detected() {
        let (x, noise) = (normals(600, 1), normals(600, 2));
        let linear: Vec<f64> = x.iter().zip(&noise).map(|(x, e)| 0.3 * x + e).collect();
        let square: Vec<f64> = x.iter().zip(&noise).map(|(x, e)| x * x + e).collect();
        let wave: Vec<f64> = x.iter().zip(&noise).map(|(x, e)| (6.0 * x).sin() + 0.5 * e).collect();
        let spread: Vec<f64> = x.iter().zip(&noise).map(|(x, e)| x.abs() * e).collect();
        for y in [&linear, &square, &wave, &spread] {
            assert_eq!(test(&x, y, [1, 1], 199).p_value, 0.005);
        }
        let found = test(&x, &linear, [1, 1], 199);
        assert!(!test(&x, &noise, [1, 1], 199).significant);
        assert_eq!((found.n, found.dim), (vec![600], Dim::Two([1, 1])));
    }

    #[test]
    fn it_names_the_columns_that_depend_on_each_other() {
        let (mut x, mut y) = (normals(400 * 3, 3), normals(400 * 2, 4));
        for i in 0..400 {
            y[2 * i + 1] += x[3 * i + 2];
        }
        let found = test(&x, &y, [3, 2], 199);
        let pair = found.findings.iter().find(|f| f.aspect == Aspect::Correlation).unwrap();
        assert_eq!((pair.columns.as_slice(), pair.p_value), (["x3".to_owned(), "y2".to_owned()].as_slice(), 0.005));
        // Rows that are out of order tell nothing.
        x.rotate_left(30);
        assert!(!test(&x, &y, [3, 2], 199).significant);
    }

    #[test]
    fn monotone_maps_units_and_threads_change_nothing_that_matters() {
        let (x, noise) = (normals(200, 5), normals(200, 6));
        let y: Vec<f64> = x.iter().zip(&noise).map(|(x, e)| 0.2 * x + e).collect();
        let first = test(&x, &y, [1, 1], 499);
        let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(first, threads.install(|| test(&x, &y, [1, 1], 499)));
        let scaled: Vec<f64> = y.iter().map(|y| 1e120 * y).collect();
        assert_eq!(test(&x, &scaled, [1, 1], 499).p_value, first.p_value);
    }

    #[test]
    fn constant_columns_and_few_rows_are_no_evidence() {
        let found = test(&[1.0; 40], &normals(40, 7), [1, 1], 99);
        assert_eq!(found.p_value, 1.0);
        assert_eq!(found.warnings, ["the sample: column 1 holds one value only and has no influence"]);
        let found = test(&normals(4, 8), &normals(4, 9), [1, 1], 99);
        assert_eq!(found.warnings, ["there are only 24 ways to pair so few rows: no p-value is much below 0.042"]);
        let error = PermutationTest::default().independence(
            Points::new(&[1.0, 2.0], 1).named("x.csv"),
            Points::new(&[1.0], 1).named("y.csv"),
            &Progress::default(),
        );
        let expected = "x.csv has 2 rows, y.csv has 1: row i of one belongs to row i of the other";
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}
