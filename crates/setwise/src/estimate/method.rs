//! Estimators by name, with the defaults of the command line and the Python package.

use std::str::FromStr;

use super::{Estimate, Estimator, GaussianKl, GaussianMi, Knn, Ksg, Logistic, Mine, Points, Pretrained, Variant};
use crate::{Device, Error, Result};

/// Methods for KL(P‖Q).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KlMethod {
    /// [`Pretrained`].
    #[default]
    Pretrained,
    /// [`Knn`].
    Knn,
    /// [`GaussianKl`].
    Gaussian,
    /// [`Logistic`].
    Logistic,
}

/// Methods for I(X; Y).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MiMethod {
    /// [`Ksg`].
    #[default]
    Ksg,
    /// [`GaussianMi`].
    Gaussian,
    /// [`GaussianMi::copula`].
    Copula,
    /// [`Mine`].
    Mine,
}

/// Looks a name up; the error lists all names.
fn parse_name<T: Copy>(name: &str, known: &[(&str, T)]) -> Result<T> {
    known.iter().find(|(n, _)| *n == name).map(|&(_, method)| method).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(n, _)| *n).collect();
        Error::Estimate(format!("there is no method {name:?}; there are {}", names.join(", ")))
    })
}

impl FromStr for KlMethod {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = [
            ("pretrained", KlMethod::Pretrained),
            ("knn", KlMethod::Knn),
            ("gaussian", KlMethod::Gaussian),
            ("logistic", KlMethod::Logistic),
        ];
        parse_name(name, &known)
    }
}

impl FromStr for MiMethod {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = [
            ("ksg", MiMethod::Ksg),
            ("gaussian", MiMethod::Gaussian),
            ("copula", MiMethod::Copula),
            ("mine", MiMethod::Mine),
        ];
        parse_name(name, &known)
    }
}

/// Options of an estimate of KL(P‖Q).
#[derive(Clone, Debug)]
pub struct KlOptions {
    /// The method.
    pub method: KlMethod,
    /// The neighbour whose distance [`Knn`] measures.
    pub k: usize,
    /// Seed of the interval.
    pub seed: u64,
    /// The device of the pretrained estimator's networks. Classical estimators run on the CPU.
    pub device: Device,
}

impl Default for KlOptions {
    fn default() -> Self {
        KlOptions { method: KlMethod::default(), k: 3, seed: 0, device: Device::Cpu }
    }
}

impl KlOptions {
    /// Options from optional arguments. A k without a method means [`Knn`].
    pub fn of(method: Option<KlMethod>, k: Option<usize>, seed: u64) -> Self {
        let default = KlOptions::default();
        let implied = if k.is_some() { KlMethod::Knn } else { default.method };
        KlOptions { method: method.unwrap_or(implied), k: k.unwrap_or(default.k), seed, device: default.device }
    }

    /// The same options on a device.
    pub fn with_device(self, device: Device) -> Self {
        KlOptions { device, ..self }
    }

    /// The estimator.
    pub fn estimator(&self) -> Result<Box<dyn Estimator>> {
        let on_cpu = matches!(self.device, Device::Cpu);
        if self.method != KlMethod::Pretrained && !on_cpu {
            let reason = match self.device {
                Device::CpuAmx => "precision bf16x3 is for the pretrained estimator; other methods compute in f64",
                _ => "only the pretrained estimator runs on a GPU; choose the cpu for other methods",
            };
            return Err(Error::Device(reason.to_owned()));
        }
        Ok(match self.method {
            KlMethod::Pretrained if on_cpu => Box::new(Pretrained::shared()?),
            KlMethod::Pretrained => Box::new(Pretrained::built_in()?.on_device(&self.device)?),
            KlMethod::Knn => Box::new(Knn::new(self.k)),
            KlMethod::Gaussian => Box::new(GaussianKl::default()),
            KlMethod::Logistic => Box::new(Logistic),
        })
    }
}

/// Options of an estimate of I(X; Y).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MiOptions {
    /// The method.
    pub method: MiMethod,
    /// The variant of [`Ksg`].
    pub variant: Variant,
    /// The neighbour whose distance [`Ksg`] measures.
    pub k: usize,
    /// Seed of the interval, and of the networks of [`Mine`].
    pub seed: u64,
}

impl Default for MiOptions {
    fn default() -> Self {
        MiOptions { method: MiMethod::default(), variant: Variant::One, k: 3, seed: 0 }
    }
}

impl MiOptions {
    /// The estimator.
    pub fn estimator(&self) -> Box<dyn Estimator> {
        match self.method {
            MiMethod::Ksg => Box::new(Ksg::new(self.k).with_variant(self.variant)),
            MiMethod::Gaussian => Box::new(GaussianMi::default()),
            MiMethod::Copula => Box::new(GaussianMi::copula()),
            MiMethod::Mine => Box::new(Mine { seed: self.seed, ..Mine::default() }),
        }
    }
}

/// Estimates KL(P‖Q) from two samples.
///
/// ```
/// use setwise::estimate::{KlMethod, KlOptions, Points, kl};
/// // P is uniform on (0, 1), Q on (0, 2).
/// let p: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101) / 101.0).collect();
/// let q: Vec<f64> = p.iter().map(|x| 2.0 * x).collect();
/// let options = KlOptions { method: KlMethod::Gaussian, ..Default::default() };
/// let estimate = kl(Points::new(&p, 1), Points::new(&q, 1), &options)?;
/// assert!((estimate.value - f64::ln(2.0)).abs() < 0.05);
/// # Ok::<(), setwise::Error>(())
/// ```
pub fn kl(p: Points, q: Points, options: &KlOptions) -> Result<Estimate> {
    options.estimator()?.estimate(p, q, options.seed)
}

/// Estimates KL(P‖Q) for every pair of samples, as [`kl`] does for one.
pub fn kl_batch(pairs: &[(Points, Points)], options: &KlOptions) -> Result<Vec<Estimate>> {
    // The first error is returned.
    options.estimator()?.estimates(pairs, options.seed).into_iter().collect()
}

/// Estimates I(X; Y) from paired rows.
pub fn mi(x: Points, y: Points, options: &MiOptions) -> Result<Estimate> {
    options.estimator().estimate(x, y, options.seed)
}

/// Estimates I(X; Y) for every pair of samples, as [`mi`] does for one.
pub fn mi_batch(pairs: &[(Points, Points)], options: &MiOptions) -> Result<Vec<Estimate>> {
    // The first error is returned.
    options.estimator().estimates(pairs, options.seed).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(n: usize, step: usize) -> Vec<f64> {
        (0..n).map(|i| ((i * step) % 101) as f64).collect()
    }

    #[test]
    fn a_batch_equals_its_estimates_one_by_one() {
        let data: Vec<Vec<f64>> = [7, 13, 29, 31].map(|step| column(60, step)).into();
        let points: Vec<Points> = data.iter().map(|d| Points::new(d, 1)).collect();
        let pairs = [(points[0], points[1]), (points[2], points[3]), (points[3], points[0])];
        let (of_kl, of_mi) = (KlOptions { k: 2, ..Default::default() }, MiOptions::default());
        let kls = kl_batch(&pairs, &of_kl).unwrap();
        let mis = mi_batch(&pairs, &of_mi).unwrap();
        for (i, &(a, b)) in pairs.iter().enumerate() {
            assert_eq!(kls[i], kl(a, b, &of_kl).unwrap());
            assert_eq!(mis[i], mi(a, b, &of_mi).unwrap());
        }
        assert!(kl_batch(&[], &of_kl).unwrap().is_empty());
    }

    #[test]
    fn a_k_without_a_method_means_knn() {
        let KlOptions { method, k, seed, device } = KlOptions::of(None, None, 5);
        assert_eq!((method, k, seed), (KlMethod::Pretrained, 3, 5));
        assert!(matches!(device, Device::Cpu));
        assert_eq!(KlOptions::of(None, Some(2), 0).method, KlMethod::Knn);
        assert_eq!(KlOptions::of(Some(KlMethod::Gaussian), Some(2), 0).method, KlMethod::Gaussian);
    }

    #[test]
    fn the_error_of_a_batch_names_its_first_failing_pair() {
        let (good, short) = (column(60, 7), column(2, 1));
        let (good, p) = (Points::new(&good, 1), Points::new(&short, 1));
        let pairs = [(good, good), (p.named("p[1]"), good), (p.named("p[2]"), good)];
        let error = kl_batch(&pairs, &KlOptions::default()).unwrap_err().to_string();
        assert!(error.starts_with("p[1]: has 2 rows"), "{error}");
    }

    #[test]
    fn unknown_names_give_an_error_that_lists_all_methods() {
        assert_eq!("gaussian".parse::<KlMethod>().unwrap(), KlMethod::Gaussian);
        assert_eq!("mine".parse::<MiMethod>().unwrap(), MiMethod::Mine);
        let error = "ksg".parse::<KlMethod>().unwrap_err().to_string();
        assert_eq!(error, "there is no method \"ksg\"; there are pretrained, knn, gaussian, logistic");
    }
}
