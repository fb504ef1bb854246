//! Examples of the combining network: drawn, converted to features, and cached in files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};

use crate::experiment::{BroadKlTask, Combiner, ManyRows, Task, ValidExperiment};
use crate::prefetch::Prefetcher;
use crate::samplers::{BroadPairs, Pair, Precision, Split, batch_seed};
use crate::{Error, Result};
use setwise::Model;
use setwise::data::Targets;
use setwise::estimate::pretrained::combiner_training::{
    HEADS, PairFeatures, directed_subsamples, feature_row, feature_width, set_model_quantiles,
};
use setwise::estimate::{Points, Progress};
use setwise::files::atomic::write_atomically;
use setwise::files::tensors::{TensorFile, to_bytes};
use setwise::random::Generator;

/// Pairs of samples that are drawn together.
const GROUP: usize = 16;
/// Number of groups in a file.
const GROUPS: usize = 32;
/// Version of the examples. It changes with their distributions and the computation of their features.
const VERSION: u32 = 7;
/// Columns of pairs with up to the largest number of rows. The features of wider samples take too long.
const MAX_DIM_OF_MANY_ROWS: usize = 10;
/// Columns that are few: most of their pairs have up to the largest number of rows.
const FEW_COLUMNS: usize = 3;
/// Other pairs have at most this share of the largest number of rows.
const USUAL_SHARE: f64 = 0.2;
/// The larger sample has at most this many times the rows of the smaller one.
const MAX_IMBALANCE: usize = 20;

/// Examples as rows of numbers, with their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Examples {
    /// Numbers for each.
    pub width: usize,
    /// What is seen of the samples.
    pub rows: Vec<f32>,
    /// Divergences, [`HEADS`] for each example.
    pub labels: Vec<f32>,
}

impl Examples {
    /// Number of examples.
    pub fn len(&self) -> usize {
        self.labels.len() / HEADS
    }

    /// Appends examples of the same source or of another.
    pub fn append(&mut self, other: Examples) {
        self.width = other.width;
        self.rows.extend(other.rows);
        self.labels.extend(other.labels);
    }
}

/// The source of examples.
pub struct Source<'a> {
    task: BroadKlTask,
    settings: Combiner,
    targets: Targets,
    seed: u64,
    loader_threads: usize,
    /// Folder of the files, if they are kept.
    folder: Option<&'a Path>,
    /// Whether samples are large and have few columns.
    many_rows: bool,
    /// Everything the features depend on.
    key: String,
}

impl<'a> Source<'a> {
    /// The examples of an experiment as its set model sees them: those of all sizes, or those with many rows.
    pub fn new(
        experiment: &ValidExperiment,
        many_rows: Option<&ManyRows>,
        parts: &Model,
        loader_threads: usize,
        folder: Option<&'a Path>,
    ) -> Result<Self> {
        let targets = experiment.training.loss.targets();
        let (Task::BroadKl(task), Targets::Quantiles { .. }) = (&experiment.task, &targets) else {
            return Err(
                setwise::Error::Estimate("a combiner belongs to a broad-kl task with quantiles".to_owned()).into()
            );
        };
        let (mut task, mut settings) = (task.clone(), experiment.combiner.clone().unwrap_or_default());
        // The training of the set model has other seeds.
        let mut seed = experiment.seed ^ 0x6b6c;
        if let Some(many) = many_rows {
            (task.dims, settings.set_size) = (many.dims, many.set_size);
            seed ^= 0x6d72;
        }
        let mut sum = crc32fast::Hasher::new();
        parts.params().iter().for_each(|x| sum.update(&x.to_le_bytes()));
        let key = format!(
            "{VERSION} {:08x} {seed} {targets:?} {} {}-{} {}-{} {} {} {} {} {} {}",
            sum.finalize(),
            task.max_divergence,
            task.dims.min,
            task.dims.max,
            settings.set_size.min,
            settings.set_size.max,
            settings.gaussian_fraction,
            settings.heavy_tail_fraction,
            settings.structured_fraction,
            settings.contaminated_fraction,
            settings.equal_fraction,
            settings.padded_fraction,
        );
        Ok(Source { task, settings, targets, seed, loader_threads, folder, many_rows: many_rows.is_some(), key })
    }

    /// Gathers complete files with at least `count` examples of a split. `done` receives the number of new examples.
    pub fn gather(
        &self,
        stream: Split,
        count: usize,
        parts: &mut Model,
        done: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Examples> {
        let width = feature_width(self.targets.width());
        let mut all = Examples { width, ..Default::default() };
        let mut feed = None;
        for file in 0.. {
            if all.len() >= count {
                break;
            }
            let first = (file * GROUPS) as u64;
            let kind = if self.many_rows { "many-rows-" } else { "" };
            let path = self.folder.map(|f| f.join(format!("{kind}{}-{file:05}.safetensors", name(stream))));
            let some = match path.as_deref().and_then(|p| self.read(p)) {
                Some(some) => {
                    feed = None;
                    done(some.len())?;
                    some
                }
                None => {
                    let feed = feed.get_or_insert_with(|| self.feed(stream, first));
                    let some = self.look(feed, parts, done)?;
                    path.map_or(Ok(()), |path| self.write(path, &some))?;
                    some
                }
            };
            all.append(some);
        }
        Ok(all)
    }

    /// Prefetches groups from `first` on.
    fn feed(&self, stream: Split, first: u64) -> Prefetcher<Vec<DrawnPair>> {
        let (task, settings, seed, many_rows) = (self.task.clone(), self.settings.clone(), self.seed, self.many_rows);
        Prefetcher::new(self.loader_threads, first, move |i| {
            let mut rng = Generator::seed_from_u64(batch_seed(seed, stream, i));
            let mut group = Vec::with_capacity(GROUP);
            while group.len() < GROUP {
                // Features of a pair that cannot be estimated, such as one with rows beyond f64, are not learnt.
                group.extend(DrawnPair::draw(&task, &settings, many_rows, &mut rng));
            }
            group
        })
    }

    /// One file's examples. A pair is an example in each direction in which its divergence is in the range.
    fn look(
        &self,
        feed: &mut Prefetcher<Vec<DrawnPair>>,
        parts: &mut Model,
        done: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Examples> {
        let mut some = Examples { width: feature_width(self.targets.width()), ..Default::default() };
        for _ in 0..GROUPS {
            let group = feed.next().ok_or(Error::Prefetch)?;
            let before = some.len();
            let directed = || group.iter().flat_map(|pair| [false, true].map(|backward| (pair, backward)));
            let subsamples: Vec<_> =
                directed().map(|(pair, backward)| directed_subsamples(&pair.features, backward)).collect();
            let quantiles = set_model_quantiles(|batch| parts.predict(batch), &subsamples)?;
            for ((pair, backward), (subsamples, quantiles)) in directed().zip(subsamples.iter().zip(&quantiles)) {
                let Some(kl) = pair.kl[usize::from(backward)] else { continue };
                let PairFeatures { forward, backward: reverse, bounded, .. } = &pair.features;
                let direction = if backward { reverse } else { forward };
                some.rows.extend(feature_row(direction, bounded, subsamples, quantiles, &self.targets)?);
                some.labels.push(kl as f32);
                some.labels.extend(pair.bounded.map(|x| x as f32));
            }
            done(some.len() - before)?;
        }
        Ok(some)
    }

    fn write(&self, path: PathBuf, some: &Examples) -> Result<()> {
        let tensors = [
            ("labels", vec![some.len(), HEADS], &some.labels[..]),
            ("rows", vec![some.len(), some.width], &some.rows[..]),
        ];
        let bytes = to_bytes(tensors, &BTreeMap::from([("key".to_owned(), self.key.clone())]));
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        write_atomically(&path, &bytes).map_err(Error::io(&path))
    }

    /// Reads the examples of a file, if it is complete and has the same key.
    fn read(&self, path: &Path) -> Option<Examples> {
        let mut file = TensorFile::read(path).ok().filter(|f| f.metadata.get("key") == Some(&self.key))?;
        let (labels, rows) = (file.tensors.remove("labels")?.data, file.tensors.remove("rows")?.data);
        let width = feature_width(self.targets.width());
        (rows.len() * HEADS == labels.len() * width).then_some(Examples { width, rows, labels })
    }
}

/// Features of two drawn samples, with their divergences.
struct DrawnPair {
    features: PairFeatures,
    /// KL(P‖Q) and KL(Q‖P), where they are in the range.
    kl: [Option<f64>; 2],
    /// Bounded divergences.
    bounded: [f64; HEADS - 1],
}

impl DrawnPair {
    fn draw(task: &BroadKlTask, settings: &Combiner, many_rows: bool, rng: &mut Generator) -> Option<Self> {
        let dim = dimension(task.dims.min, task.dims.max, rng);
        let (n, m) = settings.sizes((!many_rows).then_some(dim), rng);
        let pair = pair(task, settings, dim, n, rng);
        let equal = rng.random_bool(settings.equal_fraction);
        let in_range = |kl: f64| (kl.is_finite() && kl <= task.max_divergence).then_some(kl);
        let (kl, bounded) = match equal {
            true => ([Some(0.0); 2], [0.0; HEADS - 1]),
            false => (
                [in_range(pair.truth.value), in_range(pair.reverse_truth(Precision::Rows(m), rng).value)],
                pair.bounded_divergences(n.max(m), rng),
            ),
        };
        let pair = if rng.random_bool(settings.contaminated_fraction) { pair.contaminated(rng) } else { pair };
        let [p, q] = pair.samples([n, m], equal, rng);
        let features = PairFeatures::compute(Points::new(&p, dim), Points::new(&q, dim), &Progress::default()).ok()?;
        Some(DrawnPair { features, kl, bounded })
    }
}

/// Draws a pair of distributions for samples of `n` rows of the first.
///
/// Some pairs differ in a part of their columns only.
fn pair(task: &BroadKlTask, settings: &Combiner, dim: usize, n: usize, rng: &mut Generator) -> Pair {
    if dim > 1 && rng.random_bool(settings.padded_fraction) {
        let differing = dimension(1, dim - 1, rng);
        return unpadded_pair(task, settings, differing, n, rng).padded(differing, dim, rng);
    }
    unpadded_pair(task, settings, dim, n, rng)
}

fn unpadded_pair(task: &BroadKlTask, settings: &Combiner, dim: usize, n: usize, rng: &mut Generator) -> Pair {
    let pairs = BroadPairs { max_divergence: task.max_divergence };
    let precision = Precision::Rows(n);
    let Combiner { gaussian_fraction: gaussian, heavy_tail_fraction: heavy, structured_fraction: structured, .. } =
        *settings;
    match rng.random::<f64>() {
        u if u < gaussian => pairs.gaussians(dim, rng),
        u if u - gaussian < heavy => pairs.heavy_tails(dim, precision, rng),
        u if u - gaussian - heavy < structured => pairs.structured(dim, precision, rng),
        _ => pairs.pair_with(dim, precision, rng),
    }
}

/// Draws a dimension: log-uniform with probability three fifths, otherwise uniform.
///
/// The log-uniform part favours few dimensions, where classical estimates are good and the choice is hard.
fn dimension(min: usize, max: usize, rng: &mut Generator) -> usize {
    if rng.random_bool(0.4) {
        return rng.random_range(min..=max);
    }
    let (least, beyond) = (min as f64, max as f64 + 1.0);
    ((least * (beyond / least).powf(rng.random())) as usize).clamp(min, max)
}

fn name(stream: Split) -> &'static str {
    match stream {
        Split::Training => "training",
        Split::Validation => "validation",
        Split::Test => "test",
    }
}

impl Combiner {
    /// Draws log-uniform sizes of two samples, which are equal with probability three fifths. With a number of columns,
    /// most samples have at most a part of the largest number of rows.
    fn sizes(&self, dim: Option<usize>, rng: &mut Generator) -> (usize, usize) {
        let (least, mut most) = (self.set_size.min as f64, self.set_size.max as f64);
        let usual = dim.map(|dim| match dim {
            _ if dim <= FEW_COLUMNS => 0.4,
            _ if dim <= MAX_DIM_OF_MANY_ROWS => 0.7,
            _ => 1.0,
        });
        if usual.is_some_and(|share| rng.random_bool(share)) {
            most = (USUAL_SHARE * most).max(least);
        }
        let mut one = || (least * (most / least).powf(rng.random::<f64>())).round() as usize;
        let (n, m) = (one(), one());
        if rng.random_bool(0.6) {
            return (n, n);
        }
        (n.min(MAX_IMBALANCE * m), m.min(MAX_IMBALANCE * n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn source<'a>(folder: &'a Path, key: &str) -> Source<'a> {
        let Task::BroadKl(task) = crate::experiment::find("estimator/kl").unwrap().task else { panic!("another task") };
        let targets = Targets::Quantiles { levels: vec![0.05, 0.5, 0.95], scale: 1.0 };
        let settings = Combiner::default();
        let (folder, key) = (Some(folder), key.to_owned());
        Source { task, settings, targets, seed: 1, loader_threads: 1, folder, many_rows: false, key }
    }

    #[test]
    fn examples_are_read_back_where_the_file_is_whole_and_of_the_same_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let (count, width) = (2000, feature_width(3));
        let rows = (0..count * width).map(|i| i as f32 / 7.0).collect();
        let some = Examples { width, rows, labels: (0..HEADS * count).map(|i| i as f32).collect() };
        let path = folder.path().join("features/training-00000.safetensors");
        let own = source(folder.path(), "one");
        own.write(path.clone(), &some).unwrap();
        assert_eq!(own.read(&path), Some(some.clone()));
        assert_eq!(source(folder.path(), "other").read(&path), None);
        let narrow = Examples { width: width - 1, rows: some.rows[1..width].to_vec(), labels: vec![1.0; HEADS] };
        own.write(path.clone(), &narrow).unwrap();
        assert_eq!(own.read(&path), None);
        std::fs::write(&path, b"no tensors").unwrap();
        assert_eq!(own.read(&path), None);
    }

    #[test]
    fn few_dimensions_are_drawn_more_often_than_many() {
        let mut rng = Generator::seed_from_u64(3);
        let drawn: Vec<usize> = (0..4000).map(|_| dimension(1, 16, &mut rng)).collect();
        let share = |d: usize| drawn.iter().filter(|x| **x == d).count() as f64 / 4000.0;
        assert!((0.13..0.20).contains(&share(1)) && (0.02..0.07).contains(&share(16)), "{} {}", share(1), share(16));
        assert!(drawn.iter().all(|d| (1..=16).contains(d)));
    }
}
