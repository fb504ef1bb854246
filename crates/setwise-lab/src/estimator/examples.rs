//! Examples of the combining network: drawn, converted to features, and cached in files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};

use crate::experiment::{BroadKlTask, Combiner, Task, ValidExperiment};
use crate::prefetch::Prefetcher;
use crate::samplers::{BroadPairs, Split, batch_seed};
use crate::{Error, Result};
use setwise::Model;
use setwise::data::Targets;
use setwise::distributions::IntRange;
use setwise::estimate::Points;
use setwise::estimate::pretrained::combiner_training::{
    ChunkFeatures, feature_row, feature_width, set_model_quantiles,
};
use setwise::files::atomic::write_atomically;
use setwise::files::tensors::{TensorFile, to_bytes};
use setwise::random::Generator;

/// Examples of one dimension that are drawn together: two pairs of samples of each pair of distributions.
const GROUP: usize = 16;
/// Number of groups in a file.
const GROUPS: usize = 128;
/// Version of the features. It changes with their computation.
const VERSION: u32 = 2;

/// Examples as rows of numbers, with their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Examples {
    /// Numbers for each.
    pub width: usize,
    /// What is seen of the samples.
    pub rows: Vec<f32>,
    /// Divergences.
    pub labels: Vec<f32>,
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
    /// Everything the features depend on.
    key: String,
}

impl<'a> Source<'a> {
    /// The examples of an experiment as its set model sees them.
    pub fn new(
        experiment: &ValidExperiment,
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
        let settings = experiment.combiner.clone().unwrap_or_default();
        // The training of the set model has other seeds.
        let seed = experiment.seed ^ 0x6b6c;
        let mut sum = crc32fast::Hasher::new();
        parts.params().iter().for_each(|x| sum.update(&x.to_le_bytes()));
        let key = format!(
            "{VERSION} {:08x} {seed} {targets:?} {} {}-{} {}-{} {}",
            sum.finalize(),
            task.max_divergence,
            task.dims.min,
            task.dims.max,
            settings.set_size.min,
            settings.set_size.max,
            settings.gaussian_fraction
        );
        Ok(Source { task: task.clone(), settings, targets, seed, loader_threads, folder, key })
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
            if all.labels.len() >= count {
                break;
            }
            let first = (file * GROUPS) as u64;
            let path = self.folder.map(|f| f.join(format!("{}-{file:05}.safetensors", name(stream))));
            let some = match path.as_deref().and_then(|p| self.read(p)) {
                Some(some) => {
                    feed = None;
                    done(some.labels.len())?;
                    some
                }
                None => {
                    let feed = feed.get_or_insert_with(|| self.feed(stream, first));
                    let some = self.look(feed, parts, done)?;
                    path.map_or(Ok(()), |path| self.write(path, &some))?;
                    some
                }
            };
            all.rows.extend(&some.rows);
            all.labels.extend(&some.labels);
        }
        Ok(all)
    }

    /// Prefetches groups from `first` on.
    fn feed(&self, stream: Split, first: u64) -> Prefetcher<Result<Vec<(ChunkFeatures, f64)>>> {
        let (task, settings, seed) = (self.task.clone(), self.settings.clone(), self.seed);
        Prefetcher::new(self.loader_threads, first, move |i| {
            let mut rng = Generator::seed_from_u64(batch_seed(seed, stream, i));
            let dim = dimension(task.dims, &mut rng);
            let broad = BroadPairs { max_divergence: task.max_divergence };
            let mut group = Vec::with_capacity(GROUP);
            while group.len() < GROUP {
                let pair = match rng.random_bool(settings.gaussian_fraction) {
                    true => broad.gaussians(dim, &mut rng),
                    false => broad.pair(dim, &mut rng),
                };
                for _ in 0..2 {
                    let (n, m) = settings.sizes(&mut rng);
                    let (mut p, mut q) = (Vec::new(), Vec::new());
                    pair.sample_p(n, &mut rng, &mut p);
                    pair.sample_q(m, &mut rng, &mut q);
                    let features = ChunkFeatures::compute(Points::new(&p, dim), Points::new(&q, dim))?;
                    group.push((features, pair.truth.value));
                }
            }
            Ok(group)
        })
    }

    /// One file's examples.
    fn look(
        &self,
        feed: &mut Prefetcher<Result<Vec<(ChunkFeatures, f64)>>>,
        parts: &mut Model,
        done: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Examples> {
        let mut some = Examples { width: feature_width(self.targets.width()), ..Default::default() };
        for _ in 0..GROUPS {
            let group = feed.next().ok_or(Error::Prefetch)??;
            let chunks: Vec<&ChunkFeatures> = group.iter().map(|g| &g.0).collect();
            let quantiles = set_model_quantiles(|batch| parts.predict(batch), &chunks)?;
            for ((features, label), quantiles) in group.iter().zip(&quantiles) {
                some.rows.extend(feature_row(features, quantiles, &self.targets)?);
                some.labels.push(*label as f32);
            }
            done(group.len())?;
        }
        Ok(some)
    }

    fn write(&self, path: PathBuf, some: &Examples) -> Result<()> {
        let tensors = [
            ("labels", vec![some.labels.len()], &some.labels[..]),
            ("rows", vec![some.labels.len(), some.width], &some.rows[..]),
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
        let complete = labels.len() == GROUP * GROUPS && rows.len() == labels.len() * width;
        complete.then_some(Examples { width, rows, labels })
    }
}

/// Draws a dimension: uniform or log-uniform, each with probability one half.
///
/// The log-uniform half favours few dimensions, where classical estimates are good and the choice is hard.
fn dimension(dims: IntRange, rng: &mut Generator) -> usize {
    if rng.random_bool(0.5) {
        return dims.draw(rng);
    }
    let (least, beyond) = (dims.min as f64, dims.max as f64 + 1.0);
    ((least * (beyond / least).powf(rng.random())) as usize).clamp(dims.min, dims.max)
}

fn name(stream: Split) -> &'static str {
    match stream {
        Split::Training => "training",
        Split::Validation => "validation",
        Split::Test => "test",
    }
}

impl Combiner {
    /// Draws log-uniform sizes of two samples, which are equal with probability one half.
    fn sizes(&self, rng: &mut Generator) -> (usize, usize) {
        let (least, most) = (self.set_size.min as f64, self.set_size.max as f64);
        let mut one = || (least * (most / least).powf(rng.random::<f64>())).round() as usize;
        let (n, m) = (one(), one());
        (n, if rng.random_bool(0.5) { n } else { m })
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
        Source { task, settings, targets, seed: 1, loader_threads: 1, folder: Some(folder), key: key.to_owned() }
    }

    #[test]
    fn examples_are_read_back_where_the_file_is_whole_and_of_the_same_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let (count, width) = (GROUP * GROUPS, feature_width(3));
        let rows = (0..count * width).map(|i| i as f32 / 7.0).collect();
        let some = Examples { width, rows, labels: (0..count).map(|i| i as f32).collect() };
        let path = folder.path().join("features/training-00000.safetensors");
        let own = source(folder.path(), "one");
        own.write(path.clone(), &some).unwrap();
        assert_eq!(own.read(&path), Some(some.clone()));
        assert_eq!(source(folder.path(), "other").read(&path), None);
        let few = Examples { width, rows: some.rows[..width].to_vec(), labels: vec![1.0] };
        own.write(path.clone(), &few).unwrap();
        assert_eq!(own.read(&path), None);
        std::fs::write(&path, b"no tensors").unwrap();
        assert_eq!(own.read(&path), None);
    }

    #[test]
    fn few_dimensions_are_drawn_more_often_than_many() {
        let mut rng = Generator::seed_from_u64(3);
        let drawn: Vec<usize> = (0..4000).map(|_| dimension(IntRange::new(1, 16), &mut rng)).collect();
        let share = |d: usize| drawn.iter().filter(|x| **x == d).count() as f64 / 4000.0;
        assert!((0.12..0.19).contains(&share(1)) && (0.02..0.07).contains(&share(16)), "{} {}", share(1), share(16));
        assert!(drawn.iter().all(|d| (1..=16).contains(d)));
    }
}
