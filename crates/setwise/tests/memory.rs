//! Memory of relation networks on large sets: a stored hidden layer of width 256 of all pairs of 2,000 points is 4 GB.

use setwise::models::RelationPool;
use setwise::{Loss, Model, ModelConfig, SetBatch, Trainer};

#[test]
fn a_relation_network_block_on_two_sets_of_2000_points_trains_in_under_a_gibibyte() {
    for pool in [RelationPool::Sum, RelationPool::Max] {
        let mut config =
            ModelConfig::preset("multi-set-rn", 2).unwrap().with_latent(128).with_hidden(256).with_blocks(1);
        config.relation_pool = pool;
        let points: Vec<f32> = (0..4000).map(|i| ((i * 7919) % 1000) as f32 * 0.002 - 1.0).collect();
        let batch = SetBatch::from_examples(2, &[vec![&points, &points]]).unwrap();
        let mut trainer = Trainer::new(Model::new(config.validate().unwrap(), 1), Loss::L1);
        let loss = trainer.step(&batch, &[1.0], 1e-3).unwrap();
        assert!(loss.is_finite());
        assert!(peak_bytes() < 1 << 30, "{pool:?}: {} bytes", peak_bytes());
    }
}

/// Peak memory of this process in bytes; zero where the system does not report it.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).and_then(|l| l.split_whitespace().nth(1));
    line.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}
