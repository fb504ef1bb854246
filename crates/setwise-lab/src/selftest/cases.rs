//! Compared cases: models of every kind, and programs with shapes that no model has.

use setwise::models::{
    AttentionScale, ImageEncoder, Images, Merge, ModelConfig, OutputKind, PRESETS, Pooling, RelationPool, Relations,
    Sharing,
};
use setwise_engine::{Activation, Image, Linear, Mode, Op, Program, Value, Window};

use crate::Result;

/// Set sizes: one element, around tiles of 64, and others.
pub(super) const SIZES: [usize; 7] = [1, 130, 64, 65, 17, 63, 2];
/// Set sizes with more pairs than a block can count.
pub(super) const LARGE: [usize; 4] = [300, 1, 5, 230];
/// Set sizes whose pairs a block can count but whose rows exceed its shared memory.
pub(super) const SORTED: [usize; 4] = [190, 1, 7, 150];
/// Set sizes with more elements than a GPU has concurrent blocks.
pub(super) const MANY: [usize; 3] = [1, 9_000, 3_777];
/// Set sizes with a block for every multiprocessor of a GPU.
pub(super) const SOME: [usize; 3] = [1_000, 1, 1_777];

/// Names, models and dimensions of the cases.
pub(super) fn cases() -> Result<Vec<(String, ModelConfig, usize)>> {
    let mut cases = Vec::new();
    let small = |name: &str, dim| -> Result<ModelConfig> {
        let mut config = ModelConfig::preset(name, dim)?.with_latent(16).with_hidden(24).with_blocks(2);
        config.projection_size = 5;
        Ok(config)
    };
    for preset in PRESETS {
        for sets in 1..=3 {
            if preset.name == "cross-only" && sets == 1 {
                continue;
            }
            let config = small(preset.name, 3)?.with_sets(sets);
            cases.push((format!("{}, {sets} sets", preset.name), config, 3));
        }
        // The paper's sizes in four dimensions, and widths that are no multiples of vectors or tiles.
        cases.push((format!("{}, latent 64", preset.name), ModelConfig::preset(preset.name, 4)?, 4));
        let mut odd = small(preset.name, 5)?.with_latent(6).with_hidden(7).with_heads(2);
        odd.projections = 3;
        cases.push((format!("{}, latent 6", preset.name), odd, 5));
    }
    let base = || small("multi-set-transformer", 3);
    let mut option = |name: &str, config: ModelConfig, dim: usize| cases.push((name.to_owned(), config, dim));
    option("latent 256, hidden 512", ModelConfig::preset("multi-set-transformer", 16)?.with_blocks(1), 16);
    // Widths that are multiples of 16 but not of 32, for row kernels.
    for (latent, hidden) in [(16, 48), (48, 16)] {
        option(&format!("latent {latent}, hidden {hidden}"), base()?.with_latent(latent).with_hidden(hidden), 3);
    }
    // Second layers of pair networks that stay in shared memory, in f16 or not, or stream through it.
    // Some widths are no multiples of a tile.
    for (latent, hidden, blocks) in [(128, 256, 2), (256, 512, 1), (140, 300, 1), (24, 48, 1), (72, 600, 1)] {
        let config = ModelConfig::preset("multi-set-rn", 8)?.with_latent(latent).with_hidden(hidden);
        option(&format!("relation network, latent {latent}, hidden {hidden}"), config.with_blocks(blocks), 8);
    }
    for (name, merge) in [("concat", Merge::Concat), ("concat-relu", Merge::ConcatRelu), ("sum", Merge::Sum)] {
        option(&format!("merge {name}"), base()?.with_merge(merge), 3);
    }
    for (name, sharing) in [("cross", Sharing::Cross), ("sym", Sharing::Sym)] {
        option(&format!("sharing {name}"), base()?.with_sharing(sharing).with_sets(3), 3);
    }
    for (name, pooling) in [("max", Pooling::Max), ("mean", Pooling::Mean), ("sum", Pooling::Sum)] {
        option(&format!("pooling {name}"), base()?.with_pooling(pooling), 3);
    }
    option("three seeds", base()?.with_seeds(3), 3);
    option("no norms", ModelConfig { inner_norm: false, outer_norm: false, pool_norm: false, ..base()? }, 3);
    option("scale by latent", ModelConfig { attention_scale: AttentionScale::Latent, ..base()? }, 3);
    option("decoder without hidden layers", base()?.with_decoder_layers(0), 3);
    option("two outputs", base()?.with_output_width(2).with_decoder_layers(2), 3);
    option(
        "relation network with sums",
        ModelConfig { relation_pool: RelationPool::Sum, ..small("multi-set-rn", 3)? },
        3,
    );
    for preset in
        ["multi-set-transformer", "multi-set-transformer-equi", "union-transformer", "single-set-rff", "multi-set-rn"]
    {
        option(&format!("{preset}, per element"), small(preset, 3)?.with_output(OutputKind::Equivariant), 3);
    }
    option("set encoding", ModelConfig { set_encoding: true, ..small("union-transformer", 3)? }, 3);
    option("shared projection and pooling", ModelConfig { share_projection: true, share_pooling: true, ..base()? }, 3);
    for dim in [1, 2, 9, 17] {
        option(&format!("equivariant, {dim} dimensions"), small("multi-set-transformer-equi", 2)?, dim);
    }
    let sized = |encoder, (height, width, channels), features| Images {
        features,
        ..Images::new(encoder).with_size(height, width, channels)
    };
    let (mnist, omniglot) = (ImageEncoder::Mnist, ImageEncoder::Omniglot);
    for (name, preset, images) in [
        ("images, encoder mnist", "multi-set-transformer", sized(mnist, (12, 13, 1), 16)),
        ("images of two channels, encoder mnist", "multi-set-rn", sized(mnist, (9, 8, 2), 10)),
        ("images, encoder omniglot", "sum-merge", sized(omniglot, (19, 17, 1), 16)),
        ("images, encoder meta", "union-transformer", sized(ImageEncoder::Meta, (16, 18, 3), 12)),
    ] {
        option(name, small(preset, 3)?.with_images(images), images.numbers());
    }
    let images = sized(mnist, (8, 8, 4), 16);
    option("classifier of images", ModelConfig::classifier(images, 5), images.numbers());
    option("self relations only", ModelConfig { relations: Relations::SelfOnly, ..base()? }, 3);
    Ok(cases)
}

/// Convolutions with windows, strides and sizes that no encoder has, with a batch norm without ReLU and a pooling.
pub(super) fn windows() -> Vec<(String, Program, Image)> {
    let mut all = Vec::new();
    let mut add = |image: Image, window: Window, filters: usize, bias: bool| {
        let mut b = Program::builder(&[image.numbers(); 2], false, Mode::Train, true);
        let xs = [b.input(0), b.input(1)];
        let (ys, made) = b.convolution("c", &xs, image, filters, window, bias);
        let ys = b.batch_norm("n", &ys, made, Activation::None);
        let (pooled, _) = b.max_pool(&xs, image);
        let Window { kernel, stride, padding } = window;
        let name = format!("window {kernel}, stride {stride}, padding {padding}, {} channels", image.channels);
        all.push((name, b.finish([ys, pooled].concat()), image));
    };
    for (kernel, stride, padding) in [(1, 1, 0), (2, 3, 2), (3, 2, 0), (5, 1, 4), (4, 2, 1)] {
        let window = Window { kernel, stride, padding };
        // Numbers of filters that are no multiples of a chunk, and more than a block has.
        for (channels, filters, bias) in [(1, 7, true), (4, 10, true), (35, 41, true), (3, 36, false)] {
            add(Image { height: 7, width: 9, channels }, window, filters, bias);
        }
    }
    // Images too large for shared memory, split at ends of images and elsewhere.
    add(Image { height: 70, width: 33, channels: 1 }, Window { kernel: 3, stride: 1, padding: 1 }, 8, false);
    add(Image { height: 45, width: 47, channels: 3 }, Window { kernel: 7, stride: 1, padding: 3 }, 4, false);
    all
}

/// Linear layers as in transformers: plain, with a ReLU, with a residual and a norm.
pub(super) fn layers(latent: usize, hidden: usize) -> Program {
    let mut b = Program::builder(&[16; 2], false, Mode::Train, true);
    let inputs = [b.input(0), b.input(1)];
    let mut layer = |name: &str, xs: &[Value], cols: usize, residuals: Option<&[Value]>, activation: Activation| {
        let mut maps = Vec::new();
        for (k, &x) in xs.iter().enumerate() {
            let y = b.fresh(b.spec(x).space, cols, false);
            let mut map = b.map(&format!("{name}.{k}"), b.full(x), b.full(y), true);
            if let Some(r) = residuals {
                map.residual = Some(b.full(r[k]));
                map.norm = Some(b.norm(&format!("{name}.{k}.norm"), y, cols));
            }
            maps.push(map);
        }
        let ys: Vec<Value> = maps.iter().map(|m| m.y.value).collect();
        b.op(Op::Linear(Linear { maps, activation }));
        ys
    };
    let xs = layer("in", &inputs, latent, None, Activation::None);
    let inner = layer("hidden", &xs, hidden, None, Activation::Relu);
    let ys = layer("out", &inner, latent, Some(&xs), Activation::None);
    b.finish(ys)
}
