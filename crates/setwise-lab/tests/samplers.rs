//! Samplers and whitening against numbers of the published PyTorch code (`fixtures/utils.safetensors`).

use std::path::Path;

use rand::SeedableRng;
use safetensors::{Dtype, SafeTensors};

use setwise::distributions::Mixture;
use setwise::random::Generator;
use setwise::sets::Whitening;
use setwise_lab::samplers::Dependence;

/// A tensor of the fixture: its shape and numbers.
fn fixture(name: &str) -> (Vec<usize>, Vec<f64>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../setwise/tests/fixtures/utils.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let t = file.tensor(name).unwrap();
    let data = match t.dtype() {
        Dtype::F32 => t.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        Dtype::F64 => t.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        other => panic!("{name} is {other:?}"),
    };
    (t.shape().to_vec(), data)
}

/// The numbers of one example of a tensor whose first dimension counts examples.
fn example(name: &str, i: usize) -> Vec<f64> {
    let (shape, data) = fixture(name);
    let each = data.len() / shape[0];
    data[i * each..(i + 1) * each].to_vec()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * (1.0 + e.abs()), "{what}, number {i}: {f} for {e}");
    }
}

#[test]
fn whitening_agrees_with_the_published_code() {
    for i in 0..4 {
        let (x, y) = (example("whiten.in.x", i), example("whiten.in.y", i));
        let w = Whitening::fit(&[&x, &y], 3);
        assert_eq!(w.rank(), 3);
        for (rows, name) in [(&x, "x"), (&y, "y")] {
            let mut out = vec![0.0; rows.len()];
            w.apply(rows, &mut out);
            // Inputs are in single precision.
            assert_close(&out, &example(&format!("whiten.out64.{name}"), i), 1e-9, name);
            assert_close(&out, &example(&format!("whiten.out.{name}"), i), 1e-4, name);
        }
    }
}

/// A mixture of the fixture.
fn mixture(which: &str, i: usize) -> Mixture {
    let weights: Vec<f64> = example(&format!("gmm.{which}.logits"), i).iter().map(|l| l.exp()).collect();
    Mixture::new(
        3,
        &weights,
        &example(&format!("gmm.{which}.means"), i),
        &example(&format!("gmm.{which}.scale_tril"), i),
    )
}

#[test]
fn log_densities_and_divergences_of_mixtures_agree_with_the_published_code() {
    for i in 0..3 {
        let (p, q, x) = (mixture("p", i), mixture("q", i), example("gmm.x", i));
        assert_close(&p.log_density(&x), &example("gmm.logp", i), 1e-5, "log p");
        assert_close(&q.log_density(&x), &example("gmm.logq", i), 1e-5, "log q");
        assert_close(&[p.mean_log_ratio(&q, &x)], &example("gmm.kl_mc", i), 1e-5, "divergence on the sample");
        let mut fresh = Vec::new();
        p.sample(200_000, &mut Generator::seed_from_u64(i as u64), &mut fresh);
        let (found, expected) = (p.mean_log_ratio(&q, &fresh), example("gmm.kl_mc_200k", i)[0]);
        assert!((found / expected - 1.0).abs() < 0.03, "divergence on fresh points: {found} for {expected}");
    }
}

#[test]
fn mutual_information_of_correlated_gaussians_agrees_with_the_published_code() {
    let (_, rho) = fixture("mi_corr.rho");
    for (dim, name) in [(2, "mi_corr.d2"), (8, "mi_corr.d8")] {
        let found: Vec<f64> = rho.iter().map(|&r| Dependence::information(dim, r)).collect();
        assert_close(&found, &fixture(name).1, 1e-5, name);
    }
}
