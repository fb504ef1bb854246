//! The network: rows and their entries look at each other.
//!
//! Rows have 64 numbers, entries 32. In each of three layers rows attend to inducing points, which attend to all rows;
//! a row sees the mean and the largest of its entries; an entry sees its row and the mean of its column. The outputs do
//! not depend on the order of rows and columns. Time and memory are linear in the entries.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rayon::prelude::*;

use super::super::ranks::cosines;
use super::dense::{Dense, EPSILON, Norm};
use super::inputs::{Inputs, OF_ENTRY, OF_ROW};
use crate::files::tensors::{Tensor, TensorFile};

/// The trained weights.
const WEIGHTS: &[u8] = include_bytes!("../../../../weights/two-sample-encoder/model.safetensors");

/// Numbers of a row, of an entry, of a head of attention.
const ROW: usize = 64;
const ENTRY: usize = 32;
const HEAD: usize = 16;
/// Inducing points; scores of all heads for a row.
const POINTS: usize = 16;
const SCORES: usize = ROW / HEAD * POINTS;
/// Columns of a row of outputs, and of an entry.
pub const ROW_COLUMNS: usize = 64;
pub const ENTRY_COLUMNS: usize = 16;
/// Cosines of the rank of an entry.
const COSINES: usize = 8;
/// Rows of a task. Sums over tasks are in a fixed order.
const CHUNK: usize = 128;

pub struct Network {
    entry_input: Dense,
    row_input: Dense,
    layers: Vec<Layer>,
    row_output: (Norm, Dense),
    entry_output: (Norm, Dense),
}

struct Layer {
    attention_norm: Norm,
    /// Normalised rows to scores of inducing points that look for rows, and to values.
    point_scores: Dense,
    values: Dense,
    /// Inducing points to keys and values, normalised rows to queries.
    keys_values: Dense,
    queries: Dense,
    row_block: Block,
    summary: Dense,
    entry_block: EntryBlock,
}

/// Normalisation, hidden units, outputs.
struct Block {
    norm: Norm,
    hidden: Dense,
    out: Dense,
}

/// A block of an entry, its column's summary and its row. What the three add to hidden units is computed apart.
struct EntryBlock {
    of_entry: Dense,
    of_column: Dense,
    of_row: Dense,
    /// Hidden units of inputs that are one.
    of_one: Vec<f32>,
    /// Added after normalisation.
    bias: Vec<f32>,
    out: Dense,
}

/// What a column or a row adds to entries: hidden units, sum and sum of squares of the inputs.
struct Part {
    hidden: Vec<f32>,
    sums: Vec<[f32; 2]>,
}

impl Network {
    /// The network with the trained weights.
    pub fn trained() -> &'static Network {
        static NETWORK: OnceLock<Network> = OnceLock::new();
        NETWORK.get_or_init(|| Network::read(WEIGHTS).expect("the built-in weights are intact"))
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut tensors = Tensors(TensorFile::parse(bytes)?.tensors);
        let layer = |tensors: &mut Tensors, l: usize| -> Result<Layer, String> {
            let name = |part: &str| format!("layers.{l}.{part}");
            let keys_values = tensors.dense(&name("keys_values"))?;
            let inducing = tensors.take(&name("inducing_points"))?.data;
            Ok(Layer {
                attention_norm: tensors.norm(&name("attention_norm"))?,
                point_scores: scores_of(&part_of(&keys_values, 0), &inducing),
                values: part_of(&keys_values, ROW),
                keys_values: tensors.dense(&name("point_keys_values"))?,
                queries: tensors.dense(&name("queries"))?,
                row_block: tensors.block(&name("rows"))?,
                summary: tensors.dense(&name("column_summary"))?,
                entry_block: EntryBlock::new(tensors.block(&name("entries"))?),
            })
        };
        Ok(Network {
            entry_input: tensors.dense("entry_input")?,
            row_input: tensors.dense("row_input")?,
            layers: (0..3).map(|l| layer(&mut tensors, l)).collect::<Result<_, _>>()?,
            row_output: (tensors.norm("row_output_norm")?, tensors.dense("row_output")?),
            entry_output: (tensors.norm("entry_output_norm")?, tensors.dense("entry_output")?),
        })
    }

    /// Columns of rows, row-major: [`ROW_COLUMNS`] of the row, then [`ENTRY_COLUMNS`] of each entry.
    pub fn columns(&self, inputs: &Inputs) -> Vec<f32> {
        let dim = inputs.dim;
        let count = inputs.rows.len() / OF_ROW;
        let mut rows = vec![0.0; count * ROW];
        rows.par_chunks_mut(CHUNK * ROW)
            .zip(inputs.rows.par_chunks(CHUNK * OF_ROW))
            .for_each(|(out, x)| out.copy_from_slice(&self.row_input.apply(x)));
        let mut entries = vec![0.0; count * dim * ENTRY];
        let of_entries = inputs.entries.par_chunks(CHUNK * dim * OF_ENTRY);
        entries
            .par_chunks_mut(CHUNK * dim * ENTRY)
            .zip(of_entries)
            .for_each(|(out, x)| out.copy_from_slice(&self.entry_input.apply(&expanded(x))));
        for layer in &self.layers {
            layer.apply(&mut rows, &mut entries, dim);
        }
        let width = ROW_COLUMNS + dim * ENTRY_COLUMNS;
        let mut columns = vec![0.0; count * width];
        let of_rows = rows.par_chunks_mut(CHUNK * ROW).zip(entries.par_chunks_mut(CHUNK * dim * ENTRY));
        columns.par_chunks_mut(CHUNK * width).zip(of_rows).for_each(|(out, (rows, entries))| {
            self.row_output.0.apply(rows);
            self.entry_output.0.apply(entries);
            let [rows, entries] = [self.row_output.1.apply(rows), self.entry_output.1.apply(entries)];
            let stride = self.entry_output.1.stride();
            let of_row = rows.chunks_exact(ROW_COLUMNS).zip(entries.chunks_exact(dim * stride));
            for (out, (row, entries)) in out.chunks_exact_mut(width).zip(of_row) {
                let (of_row, of_entries) = out.split_at_mut(ROW_COLUMNS);
                of_row.copy_from_slice(row);
                let each = of_entries.chunks_exact_mut(ENTRY_COLUMNS).zip(entries.chunks_exact(stride));
                each.for_each(|(out, entry)| out.copy_from_slice(&entry[..ENTRY_COLUMNS]));
            }
        });
        columns
    }
}

/// Cosines of the rank, normal score, share of equal values, standardised value.
fn expanded(entries: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(entries.len() / OF_ENTRY * (COSINES + OF_ENTRY - 1));
    for entry in entries.chunks_exact(OF_ENTRY) {
        let mut waves = [0.0; COSINES];
        cosines(entry[0], &mut waves);
        out.extend(waves);
        out.extend(&entry[1..]);
    }
    out
}

impl Layer {
    fn apply(&self, rows: &mut [f32], entries: &mut [f32], dim: usize) {
        let mut normed = rows.to_vec();
        normed.par_chunks_mut(CHUNK * ROW).for_each(|rows| self.attention_norm.apply(rows));
        let (scores, values) = self.of_points(&self.points(&normed));
        let summaries = self.summaries(entries, dim);
        let columns = self.entry_block.part(&self.entry_block.of_column, &summaries);
        let chunks = rows.par_chunks_mut(CHUNK * ROW).zip(entries.par_chunks_mut(CHUNK * dim * ENTRY));
        chunks.zip(normed.par_chunks(CHUNK * ROW)).for_each(|((rows, entries), normed)| {
            let mut weights = scores.apply(normed);
            weights.chunks_exact_mut(POINTS).for_each(softmax);
            let context = values.apply(&weights);
            self.row_block.add(rows, beside(rows, &context, entries, dim));
            let of_rows = self.entry_block.part(&self.entry_block.of_row, rows);
            self.entry_block.add(entries, &columns, &of_rows, dim);
        });
    }

    /// The inducing points after looking at all rows.
    fn points(&self, normed: &[f32]) -> Vec<f32> {
        let of_chunk = |rows: &[f32]| {
            let (scores, values) = (self.point_scores.apply(rows), self.values.apply(rows));
            let mut seen = Seen::new();
            seen.add(&scores, &values);
            seen
        };
        let chunks: Vec<Seen> = normed.par_chunks(CHUNK * ROW).map(of_chunk).collect();
        let mut all = Seen::new();
        chunks.iter().for_each(|chunk| all.merge(chunk));
        all.means()
    }

    /// Maps of normalised rows to scores of the points, and of weights of the points to context.
    fn of_points(&self, points: &[f32]) -> (Dense, Dense) {
        let keys_values = self.keys_values.apply(points);
        let keys: Vec<f32> = keys_values.chunks_exact(2 * ROW).flat_map(|row| row[..ROW].to_vec()).collect();
        // From (head, point) to the columns of the head.
        let mut weights = vec![0.0; SCORES * ROW];
        for (point, row) in keys_values.chunks_exact(2 * ROW).enumerate() {
            for (head, values) in row[ROW..].chunks_exact(HEAD).enumerate() {
                let at = (head * POINTS + point) * ROW + head * HEAD;
                weights[at..at + HEAD].copy_from_slice(values);
            }
        }
        (scores_of(&self.queries, &keys), Dense::new(&weights, &[0.0; ROW]))
    }

    /// A summary of each column.
    fn summaries(&self, entries: &[f32], dim: usize) -> Vec<f32> {
        let of_chunk = |entries: &[f32]| {
            let mut sums = vec![0.0f32; dim * ENTRY];
            for row in entries.chunks_exact(dim * ENTRY) {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            sums
        };
        let chunks: Vec<Vec<f32>> = entries.par_chunks(CHUNK * dim * ENTRY).map(of_chunk).collect();
        let count = (entries.len() / (dim * ENTRY)) as f64;
        let mean = |i: usize| (chunks.iter().map(|sums| f64::from(sums[i])).sum::<f64>() / count) as f32;
        self.summary.apply(&(0..dim * ENTRY).map(mean).collect::<Vec<f32>>())
    }
}

/// Rows, their context, and the mean and the largest of their entries, side by side.
fn beside(rows: &[f32], context: &[f32], entries: &[f32], dim: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len() / ROW * (2 * ROW + 2 * ENTRY));
    let of_rows = rows.chunks_exact(ROW).zip(context.chunks_exact(ROW)).zip(entries.chunks_exact(dim * ENTRY));
    for ((row, context), entries) in of_rows {
        out.extend(row.iter().chain(context));
        let (mut sums, mut largest) = ([0.0f32; ENTRY], [f32::NEG_INFINITY; ENTRY]);
        for entry in entries.chunks_exact(ENTRY) {
            sums.iter_mut().zip(entry).for_each(|(sum, x)| *sum += x);
            largest.iter_mut().zip(entry).for_each(|(largest, x)| *largest = largest.max(*x));
        }
        out.extend(sums.iter().map(|sum| sum / dim as f32).chain(largest));
    }
    out
}

/// The tensors of the file that are not yet read.
struct Tensors(BTreeMap<String, Tensor>);

impl Tensors {
    fn take(&mut self, name: &str) -> Result<Tensor, String> {
        self.0.remove(name).ok_or_else(|| format!("no tensor {name:?}"))
    }

    fn dense(&mut self, name: &str) -> Result<Dense, String> {
        let [weights, bias] = [self.take(&format!("{name}.weights"))?, self.take(&format!("{name}.bias"))?];
        Ok(Dense::new(&weights.data, &bias.data))
    }

    fn norm(&mut self, name: &str) -> Result<Norm, String> {
        let [scale, shift] = [self.take(&format!("{name}.scale"))?, self.take(&format!("{name}.shift"))?];
        Ok(Norm { scale: scale.data, shift: shift.data })
    }

    fn block(&mut self, name: &str) -> Result<Block, String> {
        let norm = self.norm(&format!("{name}.norm"))?;
        Ok(Block { norm, hidden: self.dense(&format!("{name}.hidden"))?, out: self.dense(&format!("{name}.out"))? })
    }
}

/// Softmax means of values over rows, for each head and point.
struct Seen {
    largest: [f32; SCORES],
    weights: [f32; SCORES],
    values: Vec<[f32; HEAD]>,
}

impl Seen {
    fn new() -> Self {
        Seen { largest: [f32::NEG_INFINITY; SCORES], weights: [0.0; SCORES], values: vec![[0.0; HEAD]; SCORES] }
    }

    fn add(&mut self, scores: &[f32], values: &[f32]) {
        for scores in scores.chunks_exact(SCORES) {
            self.largest.iter_mut().zip(scores).for_each(|(largest, s)| *largest = largest.max(*s));
        }
        for (scores, values) in scores.chunks_exact(SCORES).zip(values.chunks_exact(ROW)) {
            for (i, score) in scores.iter().enumerate() {
                let weight = (score - self.largest[i]).exp();
                self.weights[i] += weight;
                let head = &values[i / POINTS * HEAD..][..HEAD];
                self.values[i].iter_mut().zip(head).for_each(|(sum, x)| *sum += weight * x);
            }
        }
    }

    fn merge(&mut self, other: &Seen) {
        for i in 0..SCORES {
            let largest = self.largest[i].max(other.largest[i]);
            let [mine, its] = [self.largest[i], other.largest[i]].map(|l| (l - largest).exp());
            self.largest[i] = largest;
            self.weights[i] = mine * self.weights[i] + its * other.weights[i];
            let values = self.values[i].iter_mut().zip(&other.values[i]);
            values.for_each(|(x, y)| *x = mine * *x + its * y);
        }
    }

    /// `[points, ROW]`
    fn means(&self) -> Vec<f32> {
        let of_point = |point: usize| (0..ROW).map(move |c| (c / HEAD * POINTS + point, c % HEAD));
        (0..POINTS).flat_map(of_point).map(|(i, c)| self.values[i][c] / self.weights[i]).collect()
    }
}

impl Block {
    /// Adds the outputs for these inputs to rows.
    fn add(&self, rows: &mut [f32], mut inputs: Vec<f32>) {
        self.norm.apply(&mut inputs);
        let mut hidden = self.hidden.apply(&inputs);
        hidden.iter_mut().for_each(|x| *x = x.max(0.0));
        rows.iter_mut().zip(self.out.apply(&hidden)).for_each(|(x, y)| *x += y);
    }
}

impl EntryBlock {
    /// Inputs are an entry, its column's summary and its row.
    fn new(Block { norm, hidden, out }: Block) -> Self {
        let units = hidden.outputs;
        let scaled = |input: usize| {
            let scale = norm.scale[input];
            hidden.weights_of(input).iter().map(move |w| w * scale)
        };
        let part =
            |from: usize, to: usize| Dense::new(&(from..to).flat_map(scaled).collect::<Vec<f32>>(), &vec![0.0; units]);
        let sums = |of_inputs: &[f32]| -> Vec<f32> {
            let of_unit = |unit: usize| of_inputs.iter().enumerate().map(|(k, x)| x * hidden.weights_of(k)[unit]).sum();
            (0..units).map(of_unit).collect()
        };
        EntryBlock {
            of_entry: part(0, ENTRY),
            of_column: part(ENTRY, 2 * ENTRY),
            of_row: part(2 * ENTRY, 2 * ENTRY + ROW),
            of_one: sums(&norm.scale),
            bias: sums(&norm.shift).iter().zip(hidden.bias()).map(|(x, y)| x + y).collect(),
            out,
        }
    }

    fn part(&self, dense: &Dense, inputs: &[f32]) -> Part {
        let sums = |x: &[f32]| [x.iter().sum(), x.iter().map(|x| x * x).sum()];
        Part { hidden: dense.apply(inputs), sums: inputs.chunks_exact(dense.inputs).map(sums).collect() }
    }

    /// Adds the block's outputs to entries of rows.
    fn add(&self, entries: &mut [f32], columns: &Part, rows: &Part, dim: usize) {
        let units = self.bias.len();
        let width = (2 * ENTRY + ROW) as f32;
        let Part { mut hidden, sums } = self.part(&self.of_entry, entries);
        for (e, (hidden, sums)) in hidden.chunks_exact_mut(units).zip(&sums).enumerate() {
            let (row, column) = (e / dim, e % dim);
            let total = |i: usize| sums[i] + columns.sums[column][i] + rows.sums[row][i];
            let mean = total(0) / width;
            let variance = (total(1) / width - mean * mean).max(0.0);
            let rate = 1.0 / (variance + EPSILON).sqrt();
            let of_column = &columns.hidden[column * units..][..units];
            let of_row = &rows.hidden[row * units..][..units];
            for (u, x) in hidden.iter_mut().enumerate() {
                *x = ((*x + of_column[u] + of_row[u] - mean * self.of_one[u]) * rate + self.bias[u]).max(0.0);
            }
        }
        entries.iter_mut().zip(self.out.apply(&hidden)).for_each(|(x, y)| *x += y);
    }
}

/// The map of rows to scores: products of each head of the map's outputs with the same head of each point, divided by
/// the root of a head's width.
fn scores_of(map: &Dense, points: &[f32]) -> Dense {
    let rate = 1.0 / (HEAD as f32).sqrt();
    let score = |x: &[f32], i: usize| {
        let (head, point) = (i / POINTS, i % POINTS);
        let of_head = x[head * HEAD..].iter().take(HEAD);
        rate * of_head.zip(&points[point * ROW + head * HEAD..]).map(|(x, y)| x * y).sum::<f32>()
    };
    let scores = |x: &[f32]| (0..SCORES).map(|i| score(x, i)).collect::<Vec<f32>>();
    Dense::new(&(0..map.inputs).flat_map(|k| scores(map.weights_of(k))).collect::<Vec<f32>>(), &scores(map.bias()))
}

/// [`ROW`] outputs of a map from one on.
fn part_of(map: &Dense, first: usize) -> Dense {
    let part = |x: &[f32]| x[first..first + ROW].to_vec();
    Dense::new(&(0..map.inputs).flat_map(|k| part(map.weights_of(k))).collect::<Vec<f32>>(), &part(map.bias()))
}

fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|s| *s = (*s - largest).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 200;
    const DIM: usize = 3;

    /// Inputs of rows and columns in some order.
    fn inputs(row: impl Fn(usize) -> usize, column: impl Fn(usize) -> usize) -> Inputs {
        let number = |i: usize| (i * 7919 % 101) as f32 / 101.0;
        let entry =
            |at: usize| [number(at), 3.0 * number(at + 7) - 1.5, 0.1 * number(at + 3), 4.0 * number(at + 5) - 2.0];
        let entries = (0..COUNT).flat_map(|i| (0..DIM).map(move |c| (i, c)));
        let rows = (0..COUNT).flat_map(|i| (0..OF_ROW).map(move |k| (i, k)));
        Inputs {
            dim: DIM,
            entries: entries.flat_map(|(i, c)| entry(row(i) * DIM + column(c))).collect(),
            rows: rows.map(|(i, k)| -5.0 * number(row(i) * OF_ROW + k)).collect(),
        }
    }

    #[test]
    fn columns_are_those_of_the_network_that_was_trained() {
        let columns = Network::trained().columns(&inputs(|i| i, |c| c));
        let width = ROW_COLUMNS + DIM * ENTRY_COLUMNS;
        // An independent implementation in double precision.
        for (row, column, expected) in [
            (0, 0, -4.211912),
            (3, 40, 8.242591),
            (77, 63, 7.403971),
            (120, 64, -0.362991),
            (150, 90, 0.198455),
            (199, 111, -2.847176),
        ] {
            let value = columns[row * width + column];
            assert!((value - expected).abs() < 1e-4, "{row} {column}: {value} {expected}");
        }
    }

    #[test]
    fn the_order_of_rows_and_columns_has_no_influence() {
        let (row, column) = (|i: usize| (i * 37 + 5) % COUNT, |c: usize| (c + 1) % DIM);
        let before = Network::trained().columns(&inputs(|i| i, |c| c));
        let after = Network::trained().columns(&inputs(row, column));
        let width = ROW_COLUMNS + DIM * ENTRY_COLUMNS;
        for i in 0..COUNT {
            let [x, y] = [&before[row(i) * width..][..width], &after[i * width..][..width]];
            assert!(x[..ROW_COLUMNS].iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-4));
            for c in 0..DIM {
                let entry = |x: &[f32], c: usize| x[ROW_COLUMNS + c * ENTRY_COLUMNS..][..ENTRY_COLUMNS].to_vec();
                let pairs = entry(x, column(c)).into_iter().zip(entry(y, c));
                pairs.for_each(|(x, y)| assert!((x - y).abs() < 1e-4));
            }
        }
    }

    #[test]
    fn damaged_weights_are_an_error() {
        assert!(Network::read(&WEIGHTS[..WEIGHTS.len() / 2]).is_err());
        assert!(Network::read(b"").is_err());
    }
}
