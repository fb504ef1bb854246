//! Weights of the published PyTorch code, read into models that compute the same function.
//!
//! The architecture is recognised from names and shapes. The slips of that code that change the function come along: attention
//! scaled by the root of the latent width, cross-only models that pool both sets with the first set's weights, single-set
//! relation networks that always sum, feed-forward encoders without residual and norm.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use setwise::files::tensors::{Tensor, TensorFile};
use setwise::models::collect_params;
use setwise::models::{
    AttentionScale, Encoder, Merge, Model, ModelConfig, Pooling, RelationPool, Relations, Sharing, program,
};
use setwise_engine::Mode;

use crate::{Error, Result};

/// What names and shapes cannot show.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOptions {
    /// Number of attention heads.
    pub heads: usize,
    /// Pooling over partners of multi-set relation networks.
    pub relation_pool: RelationPool,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        ReferenceOptions { heads: 4, relation_pool: RelationPool::Max }
    }
}

/// Reads a state dict saved by the published PyTorch code as safetensors, names with or without a leading `w.`.
pub fn import_reference(path: impl AsRef<Path>, options: ReferenceOptions) -> Result<Model> {
    let path = path.as_ref();
    let file = TensorFile::read(path)?;
    let bad = |reason: String| -> Error { setwise::Error::ModelFile { path: path.to_owned(), reason }.into() };
    let mut state = State::new(file.tensors);
    let config = recognise(&mut state, options).map_err(bad)?;
    let config = config.validate().map_err(|e| bad(e.to_string()))?;
    let layout = program(&config, Mode::Infer, false).params().clone();
    if let Some(spec) = layout.specs().iter().find(|s| !state.mapped.contains_key(&s.name)) {
        return Err(bad(format!("holds nothing for {:?} of shape {:?}", spec.name, spec.shape)));
    }
    let params = collect_params(&layout, |name| {
        let t = &state.mapped[name];
        (t.shape.clone(), t.data.as_slice())
    })
    .map_err(bad)?;
    Ok(Model::with_params(config, params))
}

/// Tensors by their PyTorch names, those understood so far, and what they became.
struct State {
    tensors: BTreeMap<String, Tensor>,
    used: BTreeSet<String>,
    mapped: BTreeMap<String, Tensor>,
}

type Outcome<T = ()> = std::result::Result<T, String>;

impl State {
    fn new(mut tensors: BTreeMap<String, Tensor>) -> Self {
        if tensors.keys().any(|k| k.starts_with("w.")) {
            tensors = tensors.into_iter().filter_map(|(k, t)| Some((k.strip_prefix("w.")?.to_owned(), t))).collect();
        }
        State { tensors, used: BTreeSet::new(), mapped: BTreeMap::new() }
    }

    fn has(&self, prefix: &str) -> bool {
        self.tensors.range(prefix.to_owned()..).next().is_some_and(|(k, _)| k.starts_with(prefix))
    }

    /// Number of `prefix0`, `prefix1`, … there are.
    fn count(&self, prefix: &str) -> usize {
        (0..).take_while(|i| self.has(&format!("{prefix}{i}."))).count()
    }

    fn take(&mut self, name: &str) -> Outcome<Tensor> {
        self.used.insert(name.to_owned());
        self.tensors.get(name).cloned().ok_or_else(|| format!("tensor {name:?} is missing"))
    }

    /// The shape of a tensor that must be a matrix.
    fn matrix(&self, name: &str) -> Outcome<(usize, usize)> {
        match self.tensors.get(name).map(|t| t.shape.as_slice()) {
            Some(&[rows, cols]) => Ok((rows, cols)),
            Some(shape) => Err(format!("tensor {name:?} has shape {shape:?}, a matrix was expected")),
            None => Err(format!("tensor {name:?} is missing")),
        }
    }

    fn put(&mut self, name: String, tensor: Tensor) {
        self.mapped.insert(name, tensor);
    }

    /// A linear layer, bias if it has one.
    fn linear(&mut self, from: &str, to: &str) -> Outcome {
        let weight = self.take(&format!("{from}.weight"))?;
        self.put(format!("{to}.weight"), weight);
        if self.has(&format!("{from}.bias")) {
            let bias = self.take(&format!("{from}.bias"))?;
            self.put(format!("{to}.bias"), bias);
        }
        Ok(())
    }

    /// A LayerNorm, if there is one.
    fn norm(&mut self, from: &str, to: &str) -> Outcome<bool> {
        if !self.has(&format!("{from}.weight")) {
            return Ok(false);
        }
        for (theirs, ours) in [("weight", "gain"), ("bias", "shift")] {
            let t = self.take(&format!("{from}.{theirs}"))?;
            self.put(format!("{to}.{ours}"), t);
        }
        Ok(true)
    }

    /// Feed-forward network and norms, which attention blocks and relation blocks have alike. Returns whether there are norms.
    fn tail(&mut self, from: &str, to: &str) -> Outcome<bool> {
        self.linear(&format!("{from}.fc.0"), &format!("{to}.expand"))?;
        self.linear(&format!("{from}.fc.2"), &format!("{to}.contract"))?;
        let first = self.norm(&format!("{from}.ln0"), &format!("{to}.relate-norm"))?;
        let second = self.norm(&format!("{from}.ln1"), &format!("{to}.feed-norm"))?;
        if first != second {
            return Err(format!("{from} has one of \"ln0\" and \"ln1\" but not the other"));
        }
        Ok(first)
    }

    /// A transformer block (`attn.w_*`, `fc.*`, `ln*`).
    fn transformer(&mut self, from: &str, to: &str) -> Outcome<bool> {
        for (theirs, ours) in [("w_q", "query"), ("w_k", "key"), ("w_v", "value"), ("w_o", "output")] {
            self.linear(&format!("{from}.attn.{theirs}"), &format!("{to}.{ours}"))?;
        }
        self.tail(from, to)
    }

    /// A relation block (`rn.net.*`, `fc.*`, `ln*`). Its first layer reads the partner, then the element.
    fn relation(&mut self, from: &str, to: &str, latent: usize) -> Outcome<bool> {
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
        for (name, col) in [("partner", 0), ("own", latent)] {
            let data = first.data.chunks_exact(both).flat_map(|row| &row[col..col + latent]).copied().collect();
            self.put(format!("{to}.{name}.weight"), Tensor { shape: vec![hidden, latent], data });
        }
        let bias = self.take(&format!("{from}.rn.net.0.bias"))?;
        self.put(format!("{to}.own.bias"), bias);
        self.linear(&format!("{from}.rn.net.2"), &format!("{to}.pair"))?;
        self.tail(from, to)
    }

    /// A decoder: `name` itself, or `name.0`, `name.2`, … Sets its layers and widths.
    fn decoder(&mut self, name: &str, config: &mut ModelConfig) -> Outcome {
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

    /// Pooling by attention (`S`, `mab.*`), if there is one; otherwise the mean.
    fn pooling(&mut self, from: &[&str], to: &[&str], config: &mut ModelConfig) -> Outcome {
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

    /// The input projection, shared by all sets, if there is one; sets the input width.
    fn projection(&mut self, config: &mut ModelConfig) -> Outcome {
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

    /// Whether everything under one prefix equals everything under the other, or only one of them was saved.
    fn same(&self, a: &str, b: &str) -> bool {
        if self.has(a) != self.has(b) {
            return true;
        }
        let under = |prefix: &str| -> Vec<(String, &Tensor)> {
            self.tensors.iter().filter_map(|(k, t)| Some((k.strip_prefix(prefix)?.to_owned(), t))).collect()
        };
        under(a) == under(b)
    }

    /// Of two names for shared tensors the one that was saved; marks the other as understood.
    fn either(&mut self, a: &str, b: &str) -> String {
        let (kept, other) = if self.has(a) { (a, b) } else { (b, a) };
        let others: Vec<String> = self.tensors.keys().filter(|k| k.starts_with(other)).cloned().collect();
        self.used.extend(others);
        kept.trim_end_matches('.').to_owned()
    }

    fn finish(&self) -> Outcome {
        match self.tensors.keys().find(|k| !self.used.contains(*k)) {
            Some(k) => Err(format!("tensor {k:?} of shape {:?} was not understood", self.tensors[k].shape)),
            None => Ok(()),
        }
    }
}

/// Finds the architecture, maps all tensors, returns the config.
fn recognise(s: &mut State, options: ReferenceOptions) -> Outcome<ModelConfig> {
    let mut c = ModelConfig {
        heads: options.heads,
        attention_scale: AttentionScale::Latent,
        dropout: 0.0,
        ..ModelConfig::default()
    };
    if s.has("W_h") {
        pine(s, &mut c)?;
    } else if s.has("encoder1.") {
        single_set(s, &mut c)?;
    } else if s.has("encoder.0.MAB_") {
        multi_set(s, &mut c, "encoder")?;
    } else if s.has("enc.0.MAB_") {
        multi_set(s, &mut c, "enc")?;
    } else if s.has("enc.0.e_") {
        multi_set_rn(s, &mut c, options)?;
    } else if s.has("enc.0.mab.") {
        union(s, &mut c)?;
    } else {
        let first = s.tensors.keys().next().map_or("which are none".to_owned(), |k| format!("beginning with {k:?}"));
        return Err(format!("the tensors, {first}, are of no architecture of the published code"));
    }
    s.finish()?;
    Ok(c)
}

/// Multi-set transformer (`enc`: all relations) and cross-only model (`encoder`).
fn multi_set(s: &mut State, c: &mut ModelConfig, enc: &str) -> Outcome {
    let cross_only = enc == "encoder";
    c.blocks = s.count(&format!("{enc}."));
    let own = |i: usize, n: &str| format!("{enc}.{i}.{n}");
    c.relations = if cross_only { Relations::Cross } else { Relations::All };
    let mut some = own(0, "MAB_XY.");
    if !s.has(&some) {
        some = own(0, "MAB_YX.");
    }
    (c.latent, _) = s.matrix(&format!("{some}attn.w_q.weight"))?;
    (c.hidden, _) = s.matrix(&format!("{some}fc.0.weight"))?;
    c.dimension_equivariant = !s.has(&format!("{some}attn.w_q.bias"));
    let every = |s: &State, a: &str, b: &str| (0..c.blocks).all(|i| s.same(&own(i, a), &own(i, b)));
    let cross = every(s, "MAB_XY.", "MAB_YX.");
    let selves = !cross_only && every(s, "MAB_XX.", "MAB_YY.");
    let rest = every(s, "fc_X.", "fc_Y.") && every(s, "ln_x.", "ln_y.");
    c.sharing = match (cross, selves && rest) {
        (true, true) => Sharing::Sym,
        (true, false) => Sharing::Cross,
        _ => Sharing::None,
    };
    c.merge = if s.has(&own(0, "fc_X.")) || s.has(&own(0, "fc_Y.")) { Merge::Concat } else { Merge::Sum };
    for i in 0..c.blocks {
        let to = |n: &str| format!("block.{i}.{n}");
        let mut relations = match c.sharing {
            Sharing::None => vec![(own(i, "MAB_XY"), to("0-1")), (own(i, "MAB_YX"), to("1-0"))],
            _ => vec![(s.either(&own(i, "MAB_XY."), &own(i, "MAB_YX.")), to("cross"))],
        };
        if !cross_only {
            match c.sharing {
                Sharing::Sym => relations.push((s.either(&own(i, "MAB_XX."), &own(i, "MAB_YY.")), to("self"))),
                _ => relations.extend([(own(i, "MAB_XX"), to("0-0")), (own(i, "MAB_YY"), to("1-1"))]),
            }
        }
        for (from, to) in relations {
            c.inner_norm = s.transformer(&from, &to)?;
        }
        let ends: Vec<(String, String, String)> = if c.sharing == Sharing::Sym {
            let (fc, ln) = (s.either(&own(i, "fc_X."), &own(i, "fc_Y.")), s.either(&own(i, "ln_x."), &own(i, "ln_y.")));
            vec![(fc, ln, "shared".to_owned())]
        } else {
            vec![(own(i, "fc_X"), own(i, "ln_x"), "0".to_owned()), (own(i, "fc_Y"), own(i, "ln_y"), "1".to_owned())]
        };
        for (fc, ln, slot) in ends {
            if c.merge == Merge::Concat {
                s.linear(&fc, &to(&format!("merge.{slot}")))?;
            }
            c.outer_norm = s.norm(&ln, &to(&format!("norm.{slot}")))?;
        }
    }
    s.projection(c)?;
    if cross_only {
        // Its forward pass pools both sets with the first one's weights.
        c.share_pooling = true;
        s.pooling(&["pool_x"], &["pool.shared"], c)?;
        let unused: Vec<String> = s.tensors.keys().filter(|k| k.starts_with("pool_y.")).cloned().collect();
        s.used.extend(unused);
        s.decoder("decoder", c)
    } else {
        s.pooling(&["pool_x", "pool_y"], &["pool.0", "pool.1"], c)?;
        s.decoder("dec", c)
    }
}

fn multi_set_rn(s: &mut State, c: &mut ModelConfig, options: ReferenceOptions) -> Outcome {
    c.encoder = Encoder::RelationNetwork;
    c.relation_pool = options.relation_pool;
    c.merge = Merge::ConcatRelu;
    c.outer_norm = false;
    c.pooling = Pooling::Max;
    c.blocks = s.count("enc.");
    let own = |i: usize, n: &str| format!("enc.{i}.{n}");
    let some = if s.has("enc.0.e_xy.") { own(0, "e_xy") } else { own(0, "e_yx") };
    (c.latent, _) = s.matrix(&format!("{some}.fc.2.weight"))?;
    (c.hidden, _) = s.matrix(&format!("{some}.fc.0.weight"))?;
    let every = |s: &State, a: &str, b: &str| (0..c.blocks).all(|i| s.same(&own(i, a), &own(i, b)));
    // "sym" in that code shares the relations but not the merges; ours shares those too, so the selves keep their own copies.
    c.sharing = if every(s, "e_xy.", "e_yx.") { Sharing::Cross } else { Sharing::None };
    let selves = every(s, "e_xx.", "e_yy.");
    for i in 0..c.blocks {
        let to = |n: &str| format!("block.{i}.{n}");
        let mut relations = match c.sharing {
            Sharing::None => vec![(own(i, "e_xy"), to("0-1")), (own(i, "e_yx"), to("1-0"))],
            _ => vec![(s.either(&own(i, "e_xy."), &own(i, "e_yx.")), to("cross"))],
        };
        if selves {
            let from = s.either(&own(i, "e_xx."), &own(i, "e_yy."));
            relations.extend([(from.clone(), to("0-0")), (from, to("1-1"))]);
        } else {
            relations.extend([(own(i, "e_xx"), to("0-0")), (own(i, "e_yy"), to("1-1"))]);
        }
        for (from, to) in relations {
            c.inner_norm = s.relation(&from, &to, c.latent)?;
        }
        s.linear(&own(i, "fc_X"), &to("merge.0"))?;
        s.linear(&own(i, "fc_Y"), &to("merge.1"))?;
    }
    s.projection(c)?;
    s.decoder("dec", c)
}

/// Single-set transformer, relation network and feed-forward models.
fn single_set(s: &mut State, c: &mut ModelConfig) -> Outcome {
    c.relations = Relations::SelfOnly;
    c.merge = Merge::Sum;
    (c.outer_residual, c.outer_norm) = (false, false);
    c.blocks = s.count("encoder1.");
    let first = "encoder1.0";
    if s.has(&format!("{first}.mab.")) {
        (c.latent, _) = s.matrix(&format!("{first}.mab.attn.w_q.weight"))?;
        (c.hidden, _) = s.matrix(&format!("{first}.mab.fc.0.weight"))?;
        c.dimension_equivariant = !s.has(&format!("{first}.mab.attn.w_q.bias"));
    } else if s.has(&format!("{first}.rn.")) {
        c.encoder = Encoder::RelationNetwork;
        c.relation_pool = RelationPool::Sum;
        (c.latent, _) = s.matrix(&format!("{first}.rn.fc.2.weight"))?;
        (c.hidden, _) = s.matrix(&format!("{first}.rn.fc.0.weight"))?;
    } else if s.has(&format!("{first}.enc.")) {
        c.encoder = Encoder::FeedForward;
        (c.inner_residual, c.inner_norm) = (false, false);
        (c.hidden, c.latent) = s.matrix(&format!("{first}.enc.0.weight"))?;
        c.feed_forward_layers = (0..).take_while(|i| s.has(&format!("{first}.enc.{}.", 2 * i))).count() - 1;
    } else {
        return Err(format!("the blocks under {first:?} are of no kind the published code has"));
    }
    let shared = s.same("encoder1.", "encoder2.") && s.same("pool1.", "pool2.");
    let encoders = if shared {
        c.sharing = Sharing::Sym;
        c.share_pooling = true;
        vec![(s.either("encoder1.", "encoder2."), "self".to_owned())]
    } else {
        vec![("encoder1".to_owned(), "0-0".to_owned()), ("encoder2".to_owned(), "1-1".to_owned())]
    };
    for (encoder, slot) in encoders {
        for i in 0..c.blocks {
            let (from, to) = (format!("{encoder}.{i}"), format!("block.{i}.{slot}"));
            match c.encoder {
                Encoder::Transformer => c.inner_norm = s.transformer(&format!("{from}.mab"), &to)?,
                Encoder::RelationNetwork => c.inner_norm = s.relation(&format!("{from}.rn"), &to, c.latent)?,
                _ => {
                    for layer in 0..c.feed_forward_layers {
                        s.linear(&format!("{from}.enc.{}", 2 * layer), &format!("{to}.layer.{layer}"))?;
                    }
                    s.linear(&format!("{from}.enc.{}", 2 * c.feed_forward_layers), &format!("{to}.contract"))?;
                    // Saved, but its forward pass never applies it.
                    s.used.extend([format!("{from}.ln.weight"), format!("{from}.ln.bias")]);
                }
            }
        }
    }
    s.projection(c)?;
    if shared {
        let pool = s.either("pool1.", "pool2.");
        s.pooling(&[&pool], &["pool.shared"], c)?;
    } else {
        s.pooling(&["pool1", "pool2"], &["pool.0", "pool.1"], c)?;
    }
    s.decoder("decoder", c)
}

fn union(s: &mut State, c: &mut ModelConfig) -> Outcome {
    c.relations = Relations::Union;
    c.merge = Merge::Sum;
    (c.outer_residual, c.outer_norm) = (false, false);
    c.blocks = s.count("enc.");
    (c.latent, _) = s.matrix("enc.0.mab.attn.w_q.weight")?;
    (c.hidden, _) = s.matrix("enc.0.mab.fc.0.weight")?;
    c.dimension_equivariant = !s.has("enc.0.mab.attn.w_q.bias");
    for i in 0..c.blocks {
        c.inner_norm = s.transformer(&format!("enc.{i}.mab"), &format!("block.{i}.0-0"))?;
    }
    if s.has("X_encoding") || s.has("Y_encoding") {
        c.set_encoding = true;
        for (k, name) in ["X_encoding", "Y_encoding"].into_iter().enumerate() {
            let t = s.take(name)?;
            s.put(format!("encoding.{k}"), t);
        }
    }
    s.projection(c)?;
    s.pooling(&["pool"], &["pool.0"], c)?;
    s.decoder("dec", c)
}

fn pine(s: &mut State, c: &mut ModelConfig) -> Outcome {
    c.encoder = Encoder::Pine;
    c.sets = (0..).take_while(|k| s.has(&format!("A_{k}"))).count();
    let (hidden, _) = s.matrix("W_h")?;
    c.hidden = hidden;
    c.input_widths.clear();
    for k in 0..c.sets {
        let mut direction = s.take(&format!("A_{k}"))?;
        let &[projections, 1, width] = direction.shape.as_slice() else {
            return Err(format!(
                "tensor \"A_{k}\" has shape {:?}, [projections, 1, width] was expected",
                direction.shape
            ));
        };
        direction.shape = vec![projections, width];
        let mut spread = s.take(&format!("U_{k}"))?;
        let &[_, size, 1] = spread.shape.as_slice() else {
            return Err(format!("tensor \"U_{k}\" has shape {:?}, [projections, size, 1] was expected", spread.shape));
        };
        spread.shape.pop();
        (c.projections, c.projection_size) = (projections, size);
        c.input_widths.push(width);
        let shift = s.take(&format!("V_{k}"))?;
        s.put(format!("pine.{k}.direction.weight"), direction);
        s.put(format!("pine.{k}.spread"), spread);
        s.put(format!("pine.{k}.shift"), shift);
    }
    let hidden = s.take("W_h")?;
    s.put("pine.hidden.weight".to_owned(), hidden);
    s.linear("C", "decoder.0")?;
    c.output_width = s.matrix("C.weight")?.0;
    Ok(())
}
