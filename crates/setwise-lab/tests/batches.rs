//! Batches: raw_batch_of from seeds, and prepared for models.

use setwise::data::{RawBatch, Targets};
use setwise::distributions::{IntRange, MixtureLaw};
use setwise::sets::{Append, Axes, Coordinates, SetView, mixture_features};
use setwise_lab::samplers::{Divergence, Label, Split, batch_seed, draw_batch};

fn raw_batch_of(examples: usize, seed: u64) -> RawBatch {
    let sampler = Divergence { mixture: MixtureLaw::default(), label: Label::Sample };
    draw_batch(&sampler, &Targets::Label, 3, IntRange::new(1, 9), examples, seed)
}

#[test]
fn the_same_seed_draws_the_same_examples_and_fewer_are_a_prefix() {
    let (few, many) = (raw_batch_of(3, 7), raw_batch_of(8, 7));
    assert_eq!(many, raw_batch_of(8, 7));
    assert_ne!(many.labels, raw_batch_of(8, 8).labels);
    assert_eq!(few.labels, many.labels[..3]);
    assert_eq!(few.rows(1, 2), many.rows(1, 2));
}

#[test]
fn examples_with_a_singular_covariance_are_counted() {
    let sampler = Divergence { mixture: MixtureLaw::default(), label: Label::Sample };
    // Two points span a line.
    let batch = draw_batch(&sampler, &Targets::Label, 3, IntRange::new(1, 1), 5, 1)
        .prepare(Coordinates::new(Axes::Whitened), &Targets::Label)
        .unwrap();
    assert_eq!(batch.deficient, 5);
    assert_eq!(
        draw_batch(&sampler, &Targets::Label, 3, IntRange::new(9, 9), 5, 1)
            .prepare(Coordinates::new(Axes::Whitened), &Targets::Label)
            .unwrap()
            .deficient,
        0
    );
    assert!(batch.sets.sets()[0].data().iter().all(|x| x.is_finite()));
}

#[test]
fn appended_columns_follow_the_coordinates() {
    let raw_batch = raw_batch_of(4, 2);
    for axes in [Axes::Whitened, Axes::Canonical] {
        let plain = raw_batch.prepare(Coordinates::new(axes), &Targets::Label).unwrap();
        for (raw, mixture_log_densities) in [(false, false), (true, false), (false, true), (true, true)] {
            let append = Append { raw, mixture_log_densities };
            let seen = raw_batch.prepare(Coordinates { axes, append }, &Targets::Label).unwrap();
            let (plain, seen) = (&plain.sets.sets()[1], &seen.sets.sets()[1]);
            let columns = mixture_features::COLUMNS;
            let width = 3 + if raw { 3 } else { 0 } + if mixture_log_densities { columns } else { 0 };
            assert_eq!((seen.width(), seen.offsets()), (width, plain.offsets()));
            for ((row, plain), given) in
                seen.data().chunks(width).zip(plain.data().chunks(3)).zip(raw_batch.sets[1].rows.chunks(3))
            {
                assert_eq!(row[..3], *plain);
                assert!(!raw || row[3..6].iter().zip(given).all(|(a, &b)| *a == b as f32));
            }
            if mixture_log_densities {
                let rows = [0, 1].map(|k| {
                    let set =
                        raw_batch.prepare(Coordinates::new(axes), &Targets::Label).unwrap().sets.sets()[k].clone();
                    (set.data().iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), set.offsets().to_vec())
                });
                let views = [0, 1].map(|k| SetView { data: &rows[k].0, width: 3, offsets: &rows[k].1 });
                let expected = &mixture_features::log_densities(views)[1];
                let found = seen.data().chunks(width).flat_map(|row| &row[width - columns..]);
                assert!(found.zip(expected).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + b.abs())));
            }
        }
    }
}

#[test]
fn seeds_of_neighbouring_batches_and_splits_differ() {
    let mut seeds: Vec<u64> = Vec::new();
    for split in Split::ALL {
        for seed in 0..3 {
            seeds.extend((0..1000).map(|i| batch_seed(seed, split, i)));
        }
    }
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 9000);
}
