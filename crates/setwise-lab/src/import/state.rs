//! Tensors of a state dict and their mapping to parameters of a model.

use std::collections::{BTreeMap, BTreeSet};

use setwise::files::tensors::Tensor;
use setwise::models::{ModelConfig, Pooling};

/// Tensors by their PyTorch names, the names that are mapped, and the parameters they map to.
pub(super) struct State {
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) used: BTreeSet<String>,
    pub(super) mapped: BTreeMap<String, Tensor>,
}

pub(super) type Outcome<T = ()> = std::result::Result<T, String>;

impl State {
    pub(super) fn new(mut tensors: BTreeMap<String, Tensor>) -> Self {
        if tensors.keys().any(|k| k.starts_with("w.")) {
            tensors = tensors.into_iter().filter_map(|(k, t)| Some((k.strip_prefix("w.")?.to_owned(), t))).collect();
        }
        State { tensors, used: BTreeSet::new(), mapped: BTreeMap::new() }
    }

    pub(super) fn has(&self, prefix: &str) -> bool {
        self.tensors.range(prefix.to_owned()..).next().is_some_and(|(k, _)| k.starts_with(prefix))
    }

    /// Number of prefixes `prefix0`, `prefix1`, … in the state dict.
    pub(super) fn count(&self, prefix: &str) -> usize {
        (0..).take_while(|i| self.has(&format!("{prefix}{i}."))).count()
    }

    pub(super) fn take(&mut self, name: &str) -> Outcome<Tensor> {
        self.used.insert(name.to_owned());
        self.tensors.get(name).cloned().ok_or_else(|| format!("tensor {name:?} is missing"))
    }

    /// The shape of a tensor that must be a matrix.
    pub(super) fn matrix(&self, name: &str) -> Outcome<(usize, usize)> {
        match self.tensors.get(name).map(|t| t.shape.as_slice()) {
            Some(&[rows, cols]) => Ok((rows, cols)),
            Some(shape) => Err(format!("tensor {name:?} has shape {shape:?}, a matrix was expected")),
            None => Err(format!("tensor {name:?} is missing")),
        }
    }

    pub(super) fn put(&mut self, name: String, tensor: Tensor) {
        self.mapped.insert(name, tensor);
    }

    /// Maps a linear layer, with its bias if it has one.
    pub(super) fn linear(&mut self, from: &str, to: &str) -> Outcome {
        let weight = self.take(&format!("{from}.weight"))?;
        self.put(format!("{to}.weight"), weight);
        if self.has(&format!("{from}.bias")) {
            let bias = self.take(&format!("{from}.bias"))?;
            self.put(format!("{to}.bias"), bias);
        }
        Ok(())
    }

    /// Maps a LayerNorm, if it exists. Returns whether it does.
    pub(super) fn norm(&mut self, from: &str, to: &str) -> Outcome<bool> {
        if !self.has(&format!("{from}.weight")) {
            return Ok(false);
        }
        for (theirs, ours) in [("weight", "gain"), ("bias", "shift")] {
            let t = self.take(&format!("{from}.{theirs}"))?;
            self.put(format!("{to}.{ours}"), t);
        }
        Ok(true)
    }

    /// Maps feed-forward network and norms of an attention or relation block. Returns whether there are norms.
    pub(super) fn tail(&mut self, from: &str, to: &str) -> Outcome<bool> {
        self.linear(&format!("{from}.fc.0"), &format!("{to}.expand"))?;
        self.linear(&format!("{from}.fc.2"), &format!("{to}.contract"))?;
        let first = self.norm(&format!("{from}.ln0"), &format!("{to}.relate-norm"))?;
        let second = self.norm(&format!("{from}.ln1"), &format!("{to}.feed-norm"))?;
        if first != second {
            return Err(format!("{from} has one of \"ln0\" and \"ln1\" but not the other"));
        }
        Ok(first)
    }

    /// Maps a transformer block (`attn.w_*`, `fc.*`, `ln*`).
    pub(super) fn transformer(&mut self, from: &str, to: &str) -> Outcome<bool> {
        for (theirs, ours) in [("w_q", "query"), ("w_k", "key"), ("w_v", "value"), ("w_o", "output")] {
            self.linear(&format!("{from}.attn.{theirs}"), &format!("{to}.{ours}"))?;
        }
        self.tail(from, to)
    }

    /// Maps a relation block (`rn.net.*`, `fc.*`, `ln*`). Its first layer reads the partner, then the element.
    pub(super) fn relation(&mut self, from: &str, to: &str, latent: usize) -> Outcome<bool> {
        let first = self.take(&format!("{from}.rn.net.0.weight"))?;
        let &[hidden, both] = first.shape.as_slice() else {
            return Err(format!(
                "tensor \"{from}.rn.net.0.weight\" has shape {:?}, a matrix was expected",
                first.shape
            ));
        };
        if both != 2 * latent {
            return Err(format!(
                "tensor \"{from}.rn.net.0.weight\" has {both} columns, twice the latent width {latent} was expected"
            ));
        }
        for (name, col) in [("partner", 0), ("element", latent)] {
            let data = first.data.chunks_exact(both).flat_map(|row| &row[col..col + latent]).copied().collect();
            self.put(format!("{to}.{name}.weight"), Tensor { shape: vec![hidden, latent], data });
        }
        let bias = self.take(&format!("{from}.rn.net.0.bias"))?;
        self.put(format!("{to}.element.bias"), bias);
        self.linear(&format!("{from}.rn.net.2"), &format!("{to}.pair"))?;
        self.tail(from, to)
    }

    /// Maps a decoder: `name` itself, or `name.0`, `name.2`, … Sets its layers and widths.
    pub(super) fn decoder(&mut self, name: &str, config: &mut ModelConfig) -> Outcome {
        let last = if self.has(&format!("{name}.weight")) {
            self.linear(name, "decoder.0")?;
            config.decoder_layers = 0;
            name.to_owned()
        } else {
            let layers = (0..).take_while(|i| self.has(&format!("{name}.{}.", 2 * i))).count();
            if layers == 0 {
                return Err(format!("there is no decoder {name:?}"));
            }
            for i in 0..layers {
                self.linear(&format!("{name}.{}", 2 * i), &format!("decoder.{i}"))?;
            }
            config.decoder_layers = layers - 1;
            format!("{name}.{}", 2 * (layers - 1))
        };
        config.output_width = self.matrix(&format!("{last}.weight"))?.0;
        Ok(())
    }

    /// Maps pooling by attention (`S`, `mab.*`), if it exists. Otherwise the pooling is the mean.
    pub(super) fn pooling(&mut self, from: &[&str], to: &[&str], config: &mut ModelConfig) -> Outcome {
        if !self.has(&format!("{}.S", from[0])) {
            config.pooling = Pooling::Mean;
            return Ok(());
        }
        config.pooling = Pooling::Pma;
        for (&from, to) in from.iter().zip(to) {
            let mut seeds = self.take(&format!("{from}.S"))?;
            let &[1, count, latent] = seeds.shape.as_slice() else {
                return Err(format!(
                    "tensor \"{from}.S\" has shape {:?}, [1, seeds, latent] was expected",
                    seeds.shape
                ));
            };
            seeds.shape = vec![count, latent];
            config.seeds = count;
            self.put(format!("{to}.seeds"), seeds);
            config.pool_norm = self.transformer(&format!("{from}.mab"), to)?;
        }
        Ok(())
    }

    /// Maps the shared input projection, if it exists. Sets the input width.
    pub(super) fn projection(&mut self, config: &mut ModelConfig) -> Outcome {
        let width = if self.has("proj.weight") {
            self.linear("proj", "input.shared")?;
            config.share_projection = true;
            self.matrix("proj.weight")?.1
        } else {
            config.latent
        };
        config.always_project = width == config.latent && self.has("proj.weight");
        if config.dimension_equivariant {
            if width != 1 {
                return Err(format!(
                    "tensor \"proj.weight\" reads {width} numbers, a dimension-equivariant model reads one"
                ));
            }
            config.input_widths.clear();
        } else {
            config.input_widths = vec![width; config.sets];
        }
        Ok(())
    }

    /// Whether the tensors under two prefixes are equal, or only one prefix exists.
    pub(super) fn same(&self, a: &str, b: &str) -> bool {
        if self.has(a) != self.has(b) {
            return true;
        }
        let under = |prefix: &str| -> Vec<(String, &Tensor)> {
            self.tensors.iter().filter_map(|(k, t)| Some((k.strip_prefix(prefix)?.to_owned(), t))).collect()
        };
        under(a) == under(b)
    }

    /// Of two names for shared tensors the one that exists. Marks tensors of the other as used.
    pub(super) fn either(&mut self, a: &str, b: &str) -> String {
        let (existing, other) = if self.has(a) { (a, b) } else { (b, a) };
        let others: Vec<String> = self.tensors.keys().filter(|k| k.starts_with(other)).cloned().collect();
        self.used.extend(others);
        existing.trim_end_matches('.').to_owned()
    }

    pub(super) fn finish(&self) -> Outcome {
        match self.tensors.keys().find(|k| !self.used.contains(*k)) {
            Some(k) => Err(format!("tensor {k:?} of shape {:?} was not understood", self.tensors[k].shape)),
            None => Ok(()),
        }
    }
}
