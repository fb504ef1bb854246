//! The statistics of the adaptive test: the columns each is of, how their sums are reduced, what it looks at.

use setwise_engine::splitmix64;

use super::super::encode::{
    Bumps, ENTRY_COLUMNS, Encode, Learnt, MAX_DIM, PairCosines, PooledRows, Products, ROW_COLUMNS, RankCosines, Ranks,
    RepeatedValues, Shape, bandwidths, radius_cosines, whitened,
};
use super::super::result::Aspect;
use super::super::standardised::Standardised;
use super::features::{Features, Groups};
use super::quadratic::Quadratic;

/// Most columns that are whitened; of more each is standardised by itself.
const MAX_WHITENED: usize = 512;
/// Centres of bumps of several widths, and of those that are looked at alone.
const CENTRES: [usize; 2] = [128, 256];

/// A statistic of the test.
pub(super) struct Component {
    /// The features it is of.
    pub features: usize,
    pub quadratic: Quadratic,
    /// What its witness is of, where that is not the statistic itself.
    pub witness: Option<Quadratic>,
    pub aspect: Aspect,
    /// Its p-value counts as if divided by this weight.
    pub weight: f64,
    /// Columns of the sample that each of its groups of features is of; none if it is of all.
    pub of_group: Vec<Vec<usize>>,
}

/// The pooled sample, without labels.
pub(super) struct Pooled<'a> {
    /// Rows as they are.
    pub raw: &'a [f64],
    pub standardised: &'a Standardised,
    /// All rows in an order that labels do not determine.
    pub order: &'a [u32],
    pub groups: &'a Groups,
    /// The groups that are exchanged with each other.
    pub blocks: &'a [Vec<u32>],
    /// The rows whose columns are kept one by one.
    pub single: &'a [u32],
    /// Whether witnesses of two samples are asked for.
    pub has_witness: bool,
    pub seed: u64,
}

/// Statistics and the features they are of.
pub(super) struct Statistics {
    pub features: Vec<Features>,
    pub components: Vec<Component>,
}

impl Statistics {
    /// The statistics of a pooled sample.
    ///
    /// Weights are fitted to random changes of random distributions and to the development settings; the log of
    /// November 2026 says how.
    pub fn new(pooled: &Pooled) -> Self {
        let (raw, dim) = (pooled.raw, pooled.standardised.dim);
        let mut statistics = Statistics { features: Vec::new(), components: Vec::new() };
        // Standardising may round the values of a column to few ones, next to an extreme one.
        let ranks = Ranks::new(raw, dim);
        let scores = ranks.normal_scores();
        let data = &pooled.standardised.data;
        let points: Vec<f32> = data.iter().map(|x| *x as f32).collect();
        statistics.add_bumps(pooled, &points);
        let white = if dim <= MAX_WHITENED { whitened(data, dim) } else { points };
        statistics.add_score_bumps(pooled, &scores);
        statistics.add_energy(pooled, &white);
        statistics.add_columns(pooled, &ranks);
        statistics.add_pair_cosines(pooled, &ranks);
        statistics.add_products(pooled, &scores);
        statistics.add_repeated_values(pooled);
        let radius = radius_cosines(&white, dim, 4);
        if dim <= MAX_DIM {
            let (standardised, order) = (data, pooled.order);
            let (ranks, scores, white, radius) = (&ranks, &scores, &white, &radius);
            statistics.add_learnt(pooled, &PooledRows { standardised, ranks, scores, white, radius, order });
        }
        let features = statistics.features(pooled, &radius, true);
        statistics.add(features, |f| Quadratic::whitened(f, (0..4).collect(), 0.01), (Aspect::Radius, 0.2), Vec::new());
        statistics
    }

    fn features(&mut self, pooled: &Pooled, encoder: &dyn Encode, whiten: bool) -> usize {
        self.features.push(Features::new(encoder, pooled.groups, pooled.blocks, pooled.single, whiten));
        self.features.len() - 1
    }

    fn add(
        &mut self,
        features: usize,
        quadratic: impl FnOnce(&Features) -> Quadratic,
        (aspect, weight): (Aspect, f64),
        of_group: Vec<Vec<usize>>,
    ) {
        let quadratic = quadratic(&self.features[features]);
        self.components.push(Component { features, quadratic, witness: None, aspect, weight, of_group });
    }

    /// Bumps of five widths around random rows.
    fn add_bumps(&mut self, pooled: &Pooled, points: &[f32]) {
        let (dim, seed) = (pooled.standardised.dim, pooled.seed);
        let h = bandwidths::<5>(points, dim, pooled.order, splitmix64(seed ^ 3));
        let kinds: Vec<_> = (0..5).map(|i| (Shape::Gaussian, h[i], CENTRES[usize::from(i == 1 || i == 2)])).collect();
        let bumps = Bumps::new(points, dim, pooled.order, &kinds, splitmix64(seed ^ 4));
        let of_all: Vec<usize> = (0..5).flat_map(|i| bumps.columns(i).take(CENTRES[0])).collect();
        let [one, two] = [1, 2].map(|i| bumps.columns(i).collect::<Vec<usize>>());
        let features = self.features(pooled, &bumps, true);
        self.add(features, |f| Quadratic::whitened(f, of_all, 0.3), (Aspect::Shape, 0.6), Vec::new());
        self.add(features, |f| Quadratic::whitened(f, one, 0.003), (Aspect::FineStructure, 0.6), Vec::new());
        self.add(features, |f| Quadratic::whitened(f, two, 0.003), (Aspect::FineStructure, 0.6), Vec::new());
    }

    /// Wide bumps on normal scores, which have no outliers.
    fn add_score_bumps(&mut self, pooled: &Pooled, scores: &[f32]) {
        let (dim, seed) = (pooled.standardised.dim, pooled.seed);
        let h = bandwidths::<5>(scores, dim, pooled.order, splitmix64(seed ^ 5));
        let kinds = [(Shape::Laplace, h[2], CENTRES[0]), (Shape::Gaussian, h[4], CENTRES[0])];
        let bumps = Bumps::new(scores, dim, pooled.order, &kinds, splitmix64(seed ^ 6));
        let [laplace, gaussian] = [0, 1].map(|i| bumps.columns(i).collect::<Vec<usize>>());
        let features = self.features(pooled, &bumps, true);
        self.add(features, |f| Quadratic::whitened(f, laplace, 3.0), (Aspect::Shape, 0.6), Vec::new());
        self.add(features, |f| Quadratic::whitened(f, gaussian, 0.003), (Aspect::Shape, 0.45), Vec::new());
    }

    /// The energy distance of whitened rows.
    fn add_energy(&mut self, pooled: &Pooled, points: &[f32]) {
        let dim = pooled.standardised.dim;
        let kinds = [(Shape::Distance, (dim as f32).sqrt(), CENTRES[0])];
        let bumps = Bumps::new(points, dim, pooled.order, &kinds, splitmix64(pooled.seed ^ 8));
        let matrix = bumps.kernel_matrix(0);
        let features = self.features(pooled, &bumps, false);
        self.add(features, |f| Quadratic::kernel(f, bumps.columns(0), matrix), (Aspect::Location, 0.8), Vec::new());
    }

    /// Each column by itself: a smooth test of eight frequencies, and one of mostly low ones.
    fn add_columns(&mut self, pooled: &Pooled, ranks: &Ranks) {
        /// Frequencies of a column, fewer where there are many columns.
        const ORDERS: [usize; 2] = [8, 16];
        const MAX_WIDTH: usize = 1024;
        let orders = ORDERS[1].min(MAX_WIDTH / ranks.dim).max(2);
        let cosines = RankCosines { ranks, orders };
        let width = cosines.width();
        let features = self.features(pooled, &cosines, false);
        let even: Vec<f64> = (1..=orders).map(|k| if k <= ORDERS[0] { 1.0 } else { 0.0 }).collect();
        let low: Vec<f64> = (1..=orders).map(|k| 1.0 / k as f64).collect();
        let of_group: Vec<Vec<usize>> = (0..ranks.dim).map(|c| vec![c]).collect();
        self.add(features, |_| Quadratic::largest_group(0..width, &even), (Aspect::Column, 0.25), of_group.clone());
        self.add(features, |_| Quadratic::largest_group(0..width, &low), (Aspect::Column, 0.55), of_group);
    }

    /// Each pair of columns by itself: a smooth test of their joint ranks.
    fn add_pair_cosines(&mut self, pooled: &Pooled, ranks: &Ranks) {
        let cosines = PairCosines::new(ranks);
        let width = cosines.width();
        if width > 0 {
            let features = self.features(pooled, &cosines, false);
            let of_group = cosines.pairs.iter().map(|pair| pair.to_vec()).collect();
            let even = [1.0; PairCosines::OF_PAIR];
            self.add(features, |_| Quadratic::largest_group(0..width, &even), (Aspect::Dependence, 0.4), of_group);
        }
    }

    /// Squares and products of normal scores.
    fn add_products(&mut self, pooled: &Pooled, scores: &[f32]) {
        let dim = pooled.standardised.dim;
        let encoder = Products::new(scores, dim, splitmix64(pooled.seed ^ 7));
        let width = encoder.width();
        let features = self.features(pooled, &encoder, false);
        let of_group = (0..dim).map(|c| vec![c]).collect();
        self.add(features, |f| Quadratic::largest(f, 0..dim), (Aspect::Spread, 0.25), of_group);
        if !encoder.pairs.is_empty() {
            let of_group = encoder.pairs.iter().map(|pair| pair.to_vec()).collect();
            self.add(features, |f| Quadratic::largest(f, dim..width), (Aspect::Dependence, 0.3), of_group);
        }
    }

    /// Columns of a network that was trained to see changes: groups of its columns of rows, and one of each column.
    fn add_learnt(&mut self, pooled: &Pooled, rows: &PooledRows) {
        let dim = pooled.standardised.dim;
        let learnt = Learnt::new(rows, pooled.single, splitmix64(pooled.seed ^ 9));
        let rate = 1.0 / null_square(&pooled.groups.sizes(), learnt.encoded());
        let of_rows = ROW_COLUMNS / ENTRY_COLUMNS;
        // The mean of each group under permutations, and a share of 1 / dim for each column.
        let traces = learnt.variances();
        let traces = traces.chunks(ENTRY_COLUMNS).map(|group| group.iter().sum::<f64>()).enumerate();
        let offsets = traces.map(|(group, trace)| if group < of_rows { trace } else { trace + (dim as f64).ln() });
        let columns = 0..learnt.width();
        let quadratic = Quadratic::soft_largest(columns.clone(), ENTRY_COLUMNS, rate, offsets.collect());
        let of_group = (0..of_rows).map(|_| Vec::new()).chain((0..dim).map(|c| vec![c])).collect();
        let features = self.features(pooled, &learnt, pooled.has_witness);
        let whitened = || Quadratic::whitened(&self.features[features], columns.collect(), 10.0);
        let witness = pooled.has_witness.then(whitened);
        let (aspect, weight) = (Aspect::Shape, 2.5);
        self.components.push(Component { features, quadratic, witness, aspect, weight, of_group });
    }

    /// Values that many rows share.
    fn add_repeated_values(&mut self, pooled: &Pooled) {
        let repeated = RepeatedValues::new(pooled.raw, pooled.standardised.dim);
        let width = repeated.width();
        if width > 0 {
            let of_group = (0..width).map(|value| vec![repeated.column(value)]).collect();
            let features = self.features(pooled, &repeated, false);
            self.add(features, |f| Quadratic::largest(f, 0..width), (Aspect::RepeatedValues, 1.0), of_group);
        }
    }
}

/// The mean of the weighted squares of sums under permutations, of columns with variance one where so many rows are
/// not zero.
fn null_square(sizes: &[usize], encoded: usize) -> f64 {
    let rows: usize = sizes.iter().sum();
    let share = encoded as f64 / rows as f64;
    match *sizes {
        [n, m] => share * (n as f64 * m as f64 / rows as f64),
        _ => share * rows as f64 * (1.0 - 1.0 / sizes.len() as f64),
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::seq::SliceRandom;

    use super::super::super::product::STRIP;
    use super::super::super::standardised::sorted_rows;
    use super::*;

    /// The statistics of 50 rows, those of P shifted, and the sums of the observed labels.
    fn of_shifted(n: usize, dim: usize) -> (Standardised, Statistics, Vec<super::super::quadratic::Sums>) {
        let rows = 50;
        let row =
            |i: usize| (0..dim).map(move |c| ((i * dim + c) * 7919 % 101) as f64 + if i < n { 30.0 } else { 0.0 });
        let raw: Vec<f64> = (0..rows).flat_map(row).collect();
        let standardised = Standardised::new(raw.clone(), dim);
        let sample: Vec<u8> = (0..rows).map(|i| u8::from(i >= n)).collect();
        let groups = Groups::new(&sample, &vec![0; rows], 1000, false, 1);
        let order = sorted_rows(&raw, dim);
        let single = groups.single_rows(&order);
        let pooled = Pooled {
            raw: &raw,
            standardised: &standardised,
            order: &order,
            groups: &groups,
            blocks: &[(0..rows as u32).collect()],
            single: &single,
            has_witness: true,
            seed: 3,
        };
        let statistics = Statistics::new(&pooled);
        let mut strip = vec![0.0; STRIP * rows];
        groups.sample.iter().zip(strip.chunks_exact_mut(STRIP)).for_each(|(s, out)| out[0] = f32::from(1 - s));
        let sums = statistics.features.iter().map(|f| f.sums(&strip, 1)).collect();
        (standardised, statistics, sums)
    }

    #[test]
    fn the_statistic_of_location_is_the_energy_distance() {
        let (n, dim) = (20, 2);
        let (standardised, statistics, sums) = of_shifted(n, dim);
        let location = statistics.components.iter().find(|c| c.aspect == Aspect::Location).unwrap();
        let value = location.quadratic.value(&sums[location.features], 0);
        let rows = whitened(&standardised.data, dim);
        let m = 50 - n;
        let weight = |i: usize| if i < n { 1.0 / n as f64 } else { -1.0 / m as f64 };
        let distance = |i: usize, j: usize| {
            let squares = rows[i * dim..].iter().take(dim).zip(&rows[j * dim..]).map(|(x, y)| (x - y).powi(2));
            f64::from(squares.sum::<f32>().sqrt())
        };
        let energy: f64 = -(0..50)
            .flat_map(|i| (0..50).map(move |j| (i, j)))
            .map(|(i, j)| weight(i) * weight(j) * distance(i, j))
            .sum::<f64>();
        // Sums are over rows of P; the kernel is half of the distance over √dim.
        let expected = energy * ((n * m) as f64 / 50.0).powi(2) / (2.0 * (dim as f64).sqrt());
        assert!((value / expected - 1.0).abs() < 0.02, "{value} {expected}");
    }

    #[test]
    fn groups_of_learnt_columns_have_equal_means_under_permutations() {
        let (n, m) = (20.0, 30.0);
        let (_, statistics, _) = of_shifted(20, 3);
        let learnt = statistics.components.iter().max_by(|a, b| a.weight.total_cmp(&b.weight)).unwrap();
        assert_eq!(learnt.of_group.len(), 4 + 3);
        // Sums of 20 of 50 rows: the mean of s² is n·m / (n + m − 1) times the variance.
        let features = &statistics.features[learnt.features];
        let mut strip = vec![0.0; STRIP * 50];
        let mut order: Vec<usize> = (0..50).collect();
        let mut rng = crate::random::Generator::seed_from_u64(1);
        for column in 0..STRIP {
            order.shuffle(&mut rng);
            order[..20].iter().for_each(|row| strip[row * STRIP + column] = 1.0);
        }
        let sums = features.sums(&strip, 1);
        let mean = |c: usize| sums.of_strip(c, 0, 0).iter().map(|s| f64::from(*s).powi(2)).sum::<f64>() / STRIP as f64;
        let total: f64 = (0..features.width).map(mean).sum();
        let variances: f64 = features.variances.iter().sum();
        assert!((total / (variances * n * m / (n + m - 1.0)) - 1.0).abs() < 0.3, "{total} {variances}");
        assert!((null_square(&[20, 30], 50) - n * m / (n + m)).abs() < 1e-9);
        assert!((null_square(&[20, 20, 20], 30) - 20.0).abs() < 1e-9);
    }

    #[test]
    fn every_aspect_is_looked_at_in_several_columns_and_most_in_one() {
        let aspects = |dim: usize| {
            let (_, statistics, _) = of_shifted(20, dim);
            statistics.components.iter().map(|c| c.aspect).collect::<Vec<_>>()
        };
        let all =
            [Aspect::Shape, Aspect::FineStructure, Aspect::Location, Aspect::Column, Aspect::Spread, Aspect::Radius];
        assert!(all.iter().all(|a| aspects(1).contains(a)) && !aspects(1).contains(&Aspect::Dependence));
        assert_eq!(aspects(3).iter().filter(|a| **a == Aspect::Dependence).count(), 2);
        // Too many pairs for their cosines.
        assert_eq!(aspects(16).iter().filter(|a| **a == Aspect::Dependence).count(), 1);
    }
}
