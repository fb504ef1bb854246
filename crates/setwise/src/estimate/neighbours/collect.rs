//! Collectors of measures around a query, which also prune the search.

use super::measure::{GroupMeasures, LANES, joint_measures};

/// Collects a result from the points around one query.
pub(super) trait Collector: Send {
    /// Whether points at this measure or farther leave the result unchanged.
    fn excludes(&self, measure: f64) -> bool;
    /// Visits eight points.
    fn visit(&mut self, groups: &GroupMeasures);
    /// Whether [`Collector::visit_box`] can succeed.
    const VISITS_BOXES: bool = false;
    /// Visits a box of `points` points within `max_measure`, and returns true if no point must be visited by itself.
    fn visit_box(&mut self, _farthest: f64, _points: usize) -> bool {
        false
    }
}

/// The k smallest measures, in ascending order.
pub(super) struct KSmallest {
    best: Vec<f64>,
    last: f64,
}

impl KSmallest {
    pub fn new(k: usize) -> Self {
        KSmallest { best: vec![f64::INFINITY; k], last: f64::INFINITY }
    }

    /// The `k`-th, from one.
    pub fn best(&self, k: usize) -> f64 {
        self.best[k - 1]
    }

    /// The largest of them.
    #[inline(always)]
    pub fn last(&self) -> f64 {
        self.last
    }
}

impl Collector for KSmallest {
    #[inline(always)]
    fn excludes(&self, measure: f64) -> bool {
        measure >= self.last()
    }

    #[inline(always)]
    fn visit(&mut self, groups: &GroupMeasures) {
        let measures = joint_measures(groups);
        if !measures.iter().fold(false, |any, &m| any | (m < self.last)) {
            return;
        }
        let best = &mut self.best[..];
        for m in measures {
            if m < self.last {
                let mut i = best.len() - 1;
                while i > 0 && best[i - 1] > m {
                    best[i] = best[i - 1];
                    i -= 1;
                }
                best[i] = m;
                self.last = best[best.len() - 1];
            }
        }
    }
}

/// The number of points within a radius.
pub(super) struct Count {
    pub radius: f64,
    /// Whether points at the radius itself are excluded.
    pub strict: bool,
    pub count: usize,
}

impl Collector for Count {
    const VISITS_BOXES: bool = true;

    #[inline(always)]
    fn excludes(&self, measure: f64) -> bool {
        if self.strict { measure >= self.radius } else { measure > self.radius }
    }

    #[inline(always)]
    fn visit(&mut self, groups: &GroupMeasures) {
        let measures = joint_measures(groups);
        let mut inside = 0u64;
        for m in measures {
            inside += u64::from(if self.strict { m < self.radius } else { m <= self.radius });
        }
        self.count += inside as usize;
    }

    #[inline(always)]
    fn visit_box(&mut self, max_measure: f64, points: usize) -> bool {
        let all = !self.excludes(max_measure);
        self.count += if all { points } else { 0 };
        all
    }
}

/// The number of points within a radius, and their largest measure in each group of columns.
pub(super) struct Extents {
    pub radius: f64,
    pub count: usize,
    pub sides: [f64; 2],
}

impl Collector for Extents {
    #[inline(always)]
    fn excludes(&self, measure: f64) -> bool {
        measure > self.radius
    }

    #[inline(always)]
    fn visit(&mut self, groups: &GroupMeasures) {
        let measures = joint_measures(groups);
        if !measures.iter().fold(false, |any, &m| any | (m <= self.radius)) {
            return;
        }
        for l in 0..LANES {
            if measures[l] <= self.radius {
                self.count += 1;
                self.sides = [self.sides[0].max(groups[0][l]), self.sides[1].max(groups[1][l])];
            }
        }
    }
}

/// The smallest positive measure, and the number of points at zero and at that measure.
pub(super) struct FirstPositive {
    pub measure: f64,
    pub zeros: usize,
    pub ties: usize,
}

impl FirstPositive {
    pub fn new() -> Self {
        FirstPositive { measure: f64::INFINITY, zeros: 0, ties: 0 }
    }
}

impl Collector for FirstPositive {
    #[inline(always)]
    fn excludes(&self, measure: f64) -> bool {
        measure > self.measure
    }

    #[inline(always)]
    fn visit(&mut self, groups: &GroupMeasures) {
        for m in joint_measures(groups) {
            if m == 0.0 {
                self.zeros += 1;
            } else if m < self.measure {
                (self.measure, self.ties) = (m, 1);
            } else if m == self.measure && m < f64::INFINITY {
                self.ties += 1;
            }
        }
    }
}
