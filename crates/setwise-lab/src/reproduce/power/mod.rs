//! Power and level of two-sample tests: how often each rejects at level 5 %.
//!
//! `settings` holds the pairs of distributions. A repetition draws both samples anew; all methods see the same ones.

mod settings;

use std::collections::BTreeMap;

use rand::SeedableRng;
use rayon::prelude::*;
use serde_json::json;
use setwise::estimate::Points;
use setwise::permutation_test::{PermutationTest, Statistic};
use setwise::random::Generator;
use setwise_report::{Cell, Table};

use super::Reproduction;
use crate::Result;
use crate::samplers::{ChangedPair, Split, batch_seed};

pub use settings::{Setting, Settings};

/// Options of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The pairs of distributions.
    pub settings: Settings,
    /// Part of the names of the settings that are measured.
    pub name: Option<String>,
    /// The tests.
    pub methods: Vec<Method>,
    /// Repetitions of each setting and size.
    pub repetitions: usize,
    /// Permutations of each test.
    pub permutations: usize,
    /// Rows, of settings that have several sizes; empty for all. Random changes have random sizes.
    pub sizes: Vec<usize>,
    /// Their seed.
    pub seed: u64,
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The default of `setwise test`.
    Adaptive,
    /// The energy distance.
    Energy,
    /// MMD with the median distance as bandwidth.
    Mmd,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Adaptive => "adaptive",
            Method::Energy => "energy",
            Method::Mmd => "MMD, median",
        }
    }

    /// The p-value of the test.
    fn p_value(self, p: Points, q: Points, permutations: usize, seed: u64) -> setwise::Result<f64> {
        let statistic = match self {
            Method::Adaptive => Statistic::Adaptive,
            Method::Energy => Statistic::Energy,
            Method::Mmd => Statistic::Mmd { bandwidth: None },
        };
        let test = PermutationTest { statistic, permutations, seed, ..PermutationTest::default() };
        Ok(test.two_samples(p, q)?.p_value)
    }
}

/// Measures the table. `progress` receives the name of each measurement.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    let mut heading = vec!["distributions".to_owned(), "columns".to_owned(), "rows".to_owned()];
    heading.extend(options.methods.iter().map(|m| m.name().to_owned()));
    let mut table = Table::new("", heading);
    let mut cells = Vec::new();
    let name = options.name.as_deref().unwrap_or_default();
    for (change, pairs, rates) in random_changes(options, progress)? {
        if !change.contains(name) {
            continue;
        }
        let mut row: Vec<Cell> = vec![change.into(), "1 to 60".into(), "20 to 1000".into()];
        row.extend(rates.iter().map(|rate| Cell::number(*rate, 4)));
        table.push(row);
        cells.push(json!({"distributions": change, "pairs": pairs, "rejected": by_method(options, &rates)}));
    }
    for (s, setting) in options.settings.list().iter().enumerate().filter(|(_, s)| s.name.contains(name)) {
        for &rows in setting.sizes.iter().filter(|[n, _]| options.sizes.is_empty() || options.sizes.contains(n)) {
            progress(&format!("{}, {} columns, {} rows", setting.name, setting.dim, rows[0]));
            let rates = rejections(setting, rows, s as u64, options)?;
            let of_rows = if rows[0] == rows[1] { rows[0].to_string() } else { format!("{} and {}", rows[0], rows[1]) };
            let mut row: Vec<Cell> = vec![setting.name.into(), Cell::Count(setting.dim), of_rows.as_str().into()];
            row.extend(rates.iter().map(|rate| Cell::number(*rate, 4)));
            table.push(row);
            let rejected = by_method(options, &rates);
            cells.push(
                json!({"distributions": setting.name, "columns": setting.dim, "rows": rows, "rejected": rejected}),
            );
        }
    }
    Ok(Reproduction {
        name: "two-sample-tests",
        table,
        json: json!({"repetitions": options.repetitions, "permutations": options.permutations, "cells": cells}),
        figures: Vec::new(),
        notes: Vec::new(),
    })
}

fn by_method(options: &Options, rates: &[f64]) -> serde_json::Map<String, serde_json::Value> {
    options.methods.iter().zip(rates).map(|(m, rate)| (m.name().to_owned(), json!(rate))).collect()
}

/// Random pairs by the kind of their change: how many there are, and the share that each method rejects.
fn random_changes(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Vec<(&'static str, usize, Vec<f64>)>> {
    if options.settings != Settings::Random {
        return Ok(Vec::new());
    }
    progress("random changes");
    let repetition = |r: usize| -> setwise::Result<(&'static str, Vec<bool>)> {
        let seed = batch_seed(options.seed, Split::Test, r as u64);
        let pair = ChangedPair::draw(&mut Generator::seed_from_u64(seed));
        Ok((pair.change, rejected(&pair.samples, pair.dim, seed, options)?))
    };
    let all: Vec<(&'static str, Vec<bool>)> =
        (0..options.repetitions).into_par_iter().map(repetition).collect::<setwise::Result<_>>()?;
    let mut by_change: BTreeMap<&'static str, Vec<&[bool]>> = BTreeMap::new();
    all.iter().for_each(|(change, rejected)| by_change.entry(change).or_default().push(rejected));
    let everything: Vec<&[bool]> = all.iter().map(|(_, rejected)| rejected.as_slice()).collect();
    let groups = by_change.into_iter().chain([("all", everything)]);
    Ok(groups.map(|(change, chosen)| (change, chosen.len(), shares(&chosen))).collect())
}

/// The share of repetitions that each method rejects at level 5 %.
fn rejections(setting: &Setting, rows: [usize; 2], index: u64, options: &Options) -> Result<Vec<f64>> {
    let repetition = |r: usize| -> setwise::Result<Vec<bool>> {
        let seed = batch_seed(options.seed, Split::Test, index * 1_000_000 + r as u64);
        let samples = setting.draw(rows, &mut Generator::seed_from_u64(seed));
        rejected(&samples, setting.dim, seed, options)
    };
    let all: Vec<Vec<bool>> =
        (0..options.repetitions).into_par_iter().map(repetition).collect::<setwise::Result<_>>()?;
    Ok(shares(&all))
}

/// Whether each method rejects that two samples are equal.
fn rejected(samples: &[Vec<f64>; 2], dim: usize, seed: u64, options: &Options) -> setwise::Result<Vec<bool>> {
    const LEVEL: f64 = 0.05;
    let [p, q] = samples.each_ref().map(|sample| Points::new(sample, dim));
    options.methods.iter().map(|m| Ok(m.p_value(p, q, options.permutations, seed)? <= LEVEL)).collect()
}

/// The share of repetitions that each method rejects.
fn shares<R: AsRef<[bool]>>(rejected: &[R]) -> Vec<f64> {
    let methods = rejected.first().map_or(0, |first| first.as_ref().len());
    let count = |m: usize| rejected.iter().filter(|r| r.as_ref()[m]).count();
    (0..methods).map(|m| count(m) as f64 / rejected.len() as f64).collect()
}
