//! Expectation maximisation (EM) from several starts, one example in each lane of a vector.
//!
//! Every function is `unsafe` for one reason: the instructions of `V` must exist. They do in a kernel that
//! `dispatch` runs, which is the only caller.

use setwise_engine::simd::Vector;

use super::component::{BLOCK, Component, PRIOR_POINTS, PRIOR_VARIANCE, Workspace, ln, log_density, maximise};
use super::points::{Key, Points, lanes};
use super::{LANES, MAX_COMPONENTS};

/// EM steps from every start.
pub(super) const FIRST_STEPS: usize = 6;
/// EM steps in all of the likeliest start.
pub(super) const STEPS: usize = 20;
/// Responsibility for a point that all components share evenly at a start.
pub(super) const SHARED_RESPONSIBILITY: f32 = 0.1;

/// A mixture for every example.
pub(super) struct Mixture<V> {
    components: Vec<Component<V>>,
}

/// Workspace that every step overwrites.
pub(super) struct Scratch<V> {
    /// Responsibilities, `[components, len]`.
    responsibilities: Vec<V>,
    /// Those of the likeliest start.
    best: Vec<V>,
    /// Log densities by component, `[components, len]`.
    component_logs: Vec<V>,
    /// Log densities of the mixture, `[len]`.
    pub mixture_logs: Vec<V>,
    /// That of one component at a time.
    workspace: Workspace<V>,
}

impl<V: Vector<f32>> Scratch<V> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn of(points: &[Points<V>; 2]) -> Self {
        let (len, width) = (points[0].len.max(points[1].len), points[0].width);
        // SAFETY: the caller has the instructions of V.
        let (zero, workspace) = unsafe { (V::zero(), Workspace::new(width)) };
        Scratch {
            responsibilities: vec![zero; MAX_COMPONENTS * len],
            best: vec![zero; MAX_COMPONENTS * len],
            component_logs: vec![zero; MAX_COMPONENTS * len],
            mixture_logs: vec![zero; len],
            workspace,
        }
    }

    /// Responsibilities of a start: points in the order of `key`, split into groups of equal size.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn start(&mut self, points: &Points<V>, components: usize, key: Key) {
        let len = points.len;
        let mut keys = vec![[0.0; LANES]; len];
        for (i, out) in keys.iter_mut().enumerate() {
            // SAFETY: the caller has the instructions of V.
            *out = unsafe { lanes(points.key(key, i)) };
        }
        let mut sorted = Vec::with_capacity(len);
        let mut cuts = [[f32::INFINITY; LANES]; MAX_COMPONENTS - 1];
        for lane in 0..V::LANES {
            let n = points.counts[lane];
            sorted.clear();
            sorted.extend(keys[..n].iter().map(|key| key[lane]));
            for (k, cut) in cuts.iter_mut().enumerate().take(if n == 0 { 0 } else { components - 1 }) {
                cut[lane] = *sorted.select_nth_unstable_by((k + 1) * n / components, f32::total_cmp).1;
            }
        }
        let even = SHARED_RESPONSIBILITY / components as f32;
        for (i, key) in keys.iter().enumerate() {
            for k in 0..components {
                let mut lanes = [0.0; LANES];
                for lane in 0..V::LANES {
                    let group = cuts[..components - 1].iter().filter(|cut| key[lane] >= cut[lane]).count();
                    lanes[lane] = if group == k { even + 1.0 - SHARED_RESPONSIBILITY } else { even };
                }
                // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
                self.responsibilities[k * len + i] = unsafe { V::load(lanes.as_ptr()).mul(points.present[i]) };
            }
        }
    }

    /// Keeps the responsibilities of the examples whose log posterior exceeds the best so far.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn keep_better(&mut self, scores: [f32; LANES], best: &mut [f32; LANES], len: usize) {
        let (mut better, mut worse) = ([0.0; LANES], [1.0; LANES]);
        for lane in 0..V::LANES {
            if scores[lane] > best[lane] {
                (best[lane], better[lane], worse[lane]) = (scores[lane], 1.0, 0.0);
            }
        }
        // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
        unsafe {
            let (better, worse) = (V::load(better.as_ptr()), V::load(worse.as_ptr()));
            for (best, new) in self.best[..len].iter_mut().zip(&self.responsibilities) {
                *best = better.where_positive(*new).add(worse.where_positive(*best));
            }
        }
    }
}

impl<V: Vector<f32>> Mixture<V> {
    /// The likeliest of the mixtures that EM reaches from several starts.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn fit(points: &Points<V>, components: usize, scratch: &mut Scratch<V>) -> Self {
        // SAFETY: the caller has the instructions of V.
        let (zero, blank) = unsafe { (V::zero(), Component::blank(points.width)) };
        let mut mixture = Mixture { components: vec![blank; components] };
        let len = components * points.len;
        // An example whose log posteriors are all NaN keeps responsibilities of zero.
        scratch.best[..len].fill(zero);
        let mut best = [f32::NEG_INFINITY; LANES];
        // `None` goes on from the best start.
        let starts = match (components, points.unpadded_width) {
            (1, _) => &[Some(Key::FirstAxis)][..],
            (_, 1) => &[Some(Key::FirstAxis), Some(Key::Radius), None],
            _ => &[Some(Key::FirstAxis), Some(Key::Radius), Some(Key::LastAxis), None],
        };
        for start in starts {
            let steps = match (start, components) {
                (_, 1) => 1,
                (Some(_), _) => FIRST_STEPS,
                (None, _) => STEPS - FIRST_STEPS,
            };
            match start {
                // SAFETY: the caller has the instructions of V.
                Some(key) => unsafe { scratch.start(points, components, *key) },
                None => std::mem::swap(&mut scratch.best, &mut scratch.responsibilities),
            }
            for _ in 0..steps {
                // SAFETY: the caller has the instructions of V.
                unsafe {
                    mixture.maximisation(points, scratch);
                    expectation(points, components, scratch);
                }
            }
            if start.is_some() && components > 1 {
                // SAFETY: the caller has the instructions of V.
                unsafe {
                    let scores = mixture.log_posterior(points, scratch);
                    scratch.keep_better(scores, &mut best, len);
                }
            }
        }
        mixture
    }

    /// The M-step of all components; also writes their log densities to `scratch.component_logs`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn maximisation(&mut self, points: &Points<V>, scratch: &mut Scratch<V>) {
        let (components, len) = (self.components.len(), points.len);
        let Scratch { responsibilities, component_logs, workspace, .. } = scratch;
        for (k, component) in self.components.iter_mut().enumerate() {
            let row = k * len..(k + 1) * len;
            // SAFETY: the caller has the instructions of V.
            unsafe {
                maximise(points, &responsibilities[row.clone()], components, component, workspace);
                log_density(points, component, workspace, &mut component_logs[row]);
            }
        }
    }

    /// Log likelihood plus log prior, from the log densities in `scratch`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn log_posterior(&self, points: &Points<V>, scratch: &mut Scratch<V>) -> [f32; LANES] {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            log_sum_exp(points.len, self.components.len(), scratch);
            let mut score = V::zero();
            // Sums of blocks lose less to rounding than one long sum.
            for (logs, present) in scratch.mixture_logs[..points.len].chunks(BLOCK).zip(points.present.chunks(BLOCK)) {
                let mut block = V::zero();
                for (log, present) in logs.iter().zip(present) {
                    block = log.mul_add(*present, block);
                }
                score = score.add(block);
            }
            for c in &self.components {
                let mut trace = V::zero();
                for row in c.whitening.chunks_exact(points.width).take(points.unpadded_width) {
                    for x in row {
                        trace = x.mul_add(*x, trace);
                    }
                }
                score = V::splat(-PRIOR_POINTS).mul_add(c.half_log_det, score);
                score = V::splat(-0.5 * PRIOR_POINTS * PRIOR_VARIANCE).mul_add(trace, score);
            }
            lanes(score)
        }
    }

    /// Writes the log density at every point to `scratch.mixture_logs`, without the constant −½·width·log 2π.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn log_densities(&self, points: &Points<V>, scratch: &mut Scratch<V>) {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            for (k, component) in self.components.iter().enumerate() {
                let logs = &mut scratch.component_logs[k * points.len..(k + 1) * points.len];
                log_density(points, component, &mut scratch.workspace, logs);
            }
            log_sum_exp(points.len, self.components.len(), scratch);
        }
    }
}

/// The maximum over components of the log density at point `i`.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn max_log<V: Vector<f32>>(logs: &[V], len: usize, components: usize, i: usize) -> V {
    let mut max = logs[i];
    for k in 1..components {
        // SAFETY: the caller has the instructions of V.
        max = unsafe { max.max(logs[k * len + i]) };
    }
    max
}

/// The E-step: responsibilities are a softmax over components of the log densities.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn expectation<V: Vector<f32>>(points: &Points<V>, components: usize, scratch: &mut Scratch<V>) {
    let len = points.len;
    let Scratch { responsibilities, component_logs, .. } = scratch;
    for i in 0..len {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            let max = max_log(component_logs, len, components, i);
            let mut sum = V::zero();
            for k in 0..components {
                let e = component_logs[k * len + i].sub(max).exp();
                sum = sum.add(e);
                responsibilities[k * len + i] = e;
            }
            let scale = points.present[i].div(sum);
            for k in 0..components {
                responsibilities[k * len + i] = responsibilities[k * len + i].mul(scale);
            }
        }
    }
}

/// Writes the log-sum-exp over components of the log densities at every point to `scratch.mixture_logs`.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn log_sum_exp<V: Vector<f32>>(len: usize, components: usize, scratch: &mut Scratch<V>) {
    let Scratch { mixture_logs, component_logs, .. } = scratch;
    for (i, out) in mixture_logs[..len].iter_mut().enumerate() {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            let max = max_log(component_logs, len, components, i);
            let mut sum = V::zero();
            for k in 0..components {
                sum = sum.add(component_logs[k * len + i].sub(max).exp());
            }
            *out = ln(sum).add(max);
        }
    }
}
