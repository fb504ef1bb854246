//! What is gathered around a query: collectors are shown measures and say what they need not see.

use super::measure::{LANES, Lanes, whole};

/// Gathers an answer from the points around one query.
pub(super) trait Collector: Send {
    /// Whether points at this measure or farther change nothing.
    fn done_at(&self, measure: f64) -> bool;
    /// Eight points.
    fn take(&mut self, lanes: &Lanes);
    /// Whether the collector cares for [`Collector::take_all`].
    const WHOLESALE: bool = false;
    /// Takes `points` that are all no farther than `farthest`, if it need not see them one by one.
    fn take_all(&mut self, _farthest: f64, _points: usize) -> bool {
        false
    }
}

/// The k smallest measures, sorted.
pub(super) struct Smallest {
    best: Vec<f64>,
    last: f64,
}

impl Smallest {
    pub fn new(k: usize) -> Self {
        Smallest { best: vec![f64::INFINITY; k], last: f64::INFINITY }
    }

    /// The one in place `k`, from one.
    pub fn best(&self, k: usize) -> f64 {
        self.best[k - 1]
    }

    /// The k-th.
    #[inline(always)]
    pub fn last(&self) -> f64 {
        self.last
    }
}

impl Collector for Smallest {
    #[inline(always)]
    fn done_at(&self, measure: f64) -> bool {
        measure >= self.last()
    }

    #[inline(always)]
    fn take(&mut self, lanes: &Lanes) {
        let measures = whole(lanes);
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

/// How many points lie within a radius.
pub(super) struct Count {
    pub radius: f64,
    /// Leaves out those at the radius itself.
    pub strict: bool,
    pub count: usize,
}

impl Collector for Count {
    const WHOLESALE: bool = true;

    #[inline(always)]
    fn done_at(&self, measure: f64) -> bool {
        if self.strict { measure >= self.radius } else { measure > self.radius }
    }

    #[inline(always)]
    fn take(&mut self, lanes: &Lanes) {
        let measures = whole(lanes);
        let mut inside = 0u64;
        for m in measures {
            inside += u64::from(if self.strict { m < self.radius } else { m <= self.radius });
        }
        self.count += inside as usize;
    }

    #[inline(always)]
    fn take_all(&mut self, farthest: f64, points: usize) -> bool {
        let all = !self.done_at(farthest);
        self.count += if all { points } else { 0 };
        all
    }
}

/// The points within a radius (those at it included): how many, and how far they reach in each group of columns.
pub(super) struct Reach {
    pub radius: f64,
    pub count: usize,
    pub sides: [f64; 2],
}

impl Collector for Reach {
    #[inline(always)]
    fn done_at(&self, measure: f64) -> bool {
        measure > self.radius
    }

    #[inline(always)]
    fn take(&mut self, lanes: &Lanes) {
        let measures = whole(lanes);
        if !measures.iter().fold(false, |any, &m| any | (m <= self.radius)) {
            return;
        }
        for l in 0..LANES {
            if measures[l] <= self.radius {
                self.count += 1;
                self.sides = [self.sides[0].max(lanes[0][l]), self.sides[1].max(lanes[1][l])];
            }
        }
    }
}

/// The smallest measure above zero, and how many points are no farther.
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
    fn done_at(&self, measure: f64) -> bool {
        measure > self.measure
    }

    #[inline(always)]
    fn take(&mut self, lanes: &Lanes) {
        for m in whole(lanes) {
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
