//! Architectures of the published code, recognised by names and shapes.

use setwise::models::{AttentionScale, Encoder, Merge, ModelConfig, Pooling, RelationPool, Relations, Sharing};

use super::ReferenceOptions;
use super::state::{Outcome, State};

/// Recognises the architecture and maps all tensors. Returns the config.
pub(super) fn recognise(s: &mut State, options: ReferenceOptions) -> Outcome<ModelConfig> {
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

/// Multi-set transformer (`enc`, all relations) and cross-only model (`encoder`).
fn multi_set(s: &mut State, c: &mut ModelConfig, enc: &str) -> Outcome {
    let cross_only = enc == "encoder";
    c.blocks = s.count(&format!("{enc}."));
    let name = |i: usize, n: &str| format!("{enc}.{i}.{n}");
    c.relations = if cross_only { Relations::Cross } else { Relations::All };
    let mut first = name(0, "MAB_XY.");
    if !s.has(&first) {
        first = name(0, "MAB_YX.");
    }
    (c.latent, _) = s.matrix(&format!("{first}attn.w_q.weight"))?;
    (c.hidden, _) = s.matrix(&format!("{first}fc.0.weight"))?;
    c.dimension_equivariant = !s.has(&format!("{first}attn.w_q.bias"));
    let every = |s: &State, a: &str, b: &str| (0..c.blocks).all(|i| s.same(&name(i, a), &name(i, b)));
    let cross = every(s, "MAB_XY.", "MAB_YX.");
    let selves = !cross_only && every(s, "MAB_XX.", "MAB_YY.");
    let rest = every(s, "fc_X.", "fc_Y.") && every(s, "ln_x.", "ln_y.");
    c.sharing = match (cross, selves && rest) {
        (true, true) => Sharing::Sym,
        (true, false) => Sharing::Cross,
        _ => Sharing::None,
    };
    c.merge = if s.has(&name(0, "fc_X.")) || s.has(&name(0, "fc_Y.")) { Merge::Concat } else { Merge::Sum };
    for i in 0..c.blocks {
        let to = |n: &str| format!("block.{i}.{n}");
        let mut relations = match c.sharing {
            Sharing::None => vec![(name(i, "MAB_XY"), to("0-1")), (name(i, "MAB_YX"), to("1-0"))],
            _ => vec![(s.either(&name(i, "MAB_XY."), &name(i, "MAB_YX.")), to("cross"))],
        };
        if !cross_only {
            match c.sharing {
                Sharing::Sym => relations.push((s.either(&name(i, "MAB_XX."), &name(i, "MAB_YY.")), to("self"))),
                _ => relations.extend([(name(i, "MAB_XX"), to("0-0")), (name(i, "MAB_YY"), to("1-1"))]),
            }
        }
        for (from, to) in relations {
            c.inner_norm = s.transformer(&from, &to)?;
        }
        let ends: Vec<(String, String, String)> = if c.sharing == Sharing::Sym {
            let (fc, ln) =
                (s.either(&name(i, "fc_X."), &name(i, "fc_Y.")), s.either(&name(i, "ln_x."), &name(i, "ln_y.")));
            vec![(fc, ln, "shared".to_owned())]
        } else {
            vec![(name(i, "fc_X"), name(i, "ln_x"), "0".to_owned()), (name(i, "fc_Y"), name(i, "ln_y"), "1".to_owned())]
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
        // The published forward pass pools both sets with the first set's weights.
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
    let name = |i: usize, n: &str| format!("enc.{i}.{n}");
    let first = if s.has("enc.0.e_xy.") { name(0, "e_xy") } else { name(0, "e_yx") };
    (c.latent, _) = s.matrix(&format!("{first}.fc.2.weight"))?;
    (c.hidden, _) = s.matrix(&format!("{first}.fc.0.weight"))?;
    let every = |s: &State, a: &str, b: &str| (0..c.blocks).all(|i| s.same(&name(i, a), &name(i, b)));
    // The published "sym" shares relations but not merges. Ours shares both, so self relations are copied instead.
    c.sharing = if every(s, "e_xy.", "e_yx.") { Sharing::Cross } else { Sharing::None };
    let selves = every(s, "e_xx.", "e_yy.");
    for i in 0..c.blocks {
        let to = |n: &str| format!("block.{i}.{n}");
        let mut relations = match c.sharing {
            Sharing::None => vec![(name(i, "e_xy"), to("0-1")), (name(i, "e_yx"), to("1-0"))],
            _ => vec![(s.either(&name(i, "e_xy."), &name(i, "e_yx.")), to("cross"))],
        };
        if selves {
            let from = s.either(&name(i, "e_xx."), &name(i, "e_yy."));
            relations.extend([(from.clone(), to("0-0")), (from, to("1-1"))]);
        } else {
            relations.extend([(name(i, "e_xx"), to("0-0")), (name(i, "e_yy"), to("1-1"))]);
        }
        for (from, to) in relations {
            c.inner_norm = s.relation(&from, &to, c.latent)?;
        }
        s.linear(&name(i, "fc_X"), &to("merge.0"))?;
        s.linear(&name(i, "fc_Y"), &to("merge.1"))?;
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
                    // The published forward pass never applies this norm.
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
