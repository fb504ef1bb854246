//! Training steps after the first do not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use setwise::models::{ImageEncoder, Images, PRESETS};
use setwise::{Loss, Model, ModelConfig, SetBatch, Trainer};

/// The system allocator, with a count of each thread's allocations.
struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count_allocation() {
    // A thread that ends has no count.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is forwarded to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: `p` is from the system allocator with this layout, as the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation();
        // SAFETY: `p` is from the system allocator with this layout, as the caller upholds the contract of `realloc`.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// `repeats` times two examples with sets of these sizes.
fn batch(sizes: [usize; 4], repeats: usize) -> SetBatch {
    let data: Vec<f32> = (0..400).map(|i| ((i * 37) % 100) as f32 * 0.02 - 1.0).collect();
    let [a, b, c, d] = sizes.map(|n| &data[..2 * n]);
    let examples: Vec<Vec<&[f32]>> = (0..repeats).flat_map(|_| [vec![a, b], vec![c, d]]).collect();
    SetBatch::from_examples(2, &examples).unwrap()
}

#[test]
fn steps_after_the_first_allocate_only_the_view_of_the_batch() {
    // One thread: with more, a thread that runs its first kernel in a later step allocates its scratch then.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        // Two examples run one operation at a time, six run several operations per example.
        for (preset, repeats) in PRESETS.iter().flat_map(|p| [(p, 1), (p, 3)]) {
            let (large, small) = (batch([50, 60, 70, 80], repeats), batch([40, 50, 60, 33], repeats));
            let targets = [0.1, 0.2].repeat(repeats);
            let config = ModelConfig::preset(preset.name, 2).unwrap().with_latent(16).with_hidden(32);
            let mut trainer = Trainer::new(Model::new(config.validate().unwrap(), 1), Loss::L1);
            trainer.step(&large, &targets, 1e-3).unwrap();
            let before = ALLOCATIONS.get();
            for b in [&large, &small, &large] {
                trainer.step(b, &targets, 1e-3).unwrap();
            }
            let count = ALLOCATIONS.get() - before;
            assert!(count <= 3, "{}: {count} allocations in three steps", preset.name);
        }
        let images = Images::new(ImageEncoder::Mnist).with_size(10, 10, 1);
        let config = ModelConfig::preset("multi-set-transformer", 1).unwrap().with_images(images);
        let config = config.with_latent(16).with_hidden(32).validate().unwrap();
        let pixels: Vec<f32> = (0..900).map(|i| ((i * 37) % 100) as f32 * 0.01).collect();
        let batch = |a: usize, b: usize| SetBatch::from_examples(100, &[vec![&pixels[..a * 100], &pixels[..b * 100]]]);
        let (large, small) = (batch(7, 9).unwrap(), batch(2, 3).unwrap());
        let mut trainer = Trainer::new(Model::new(config, 1), Loss::Mse);
        trainer.step(&large, &[0.1], 1e-3).unwrap();
        let before = ALLOCATIONS.get();
        for b in [&large, &small, &large] {
            trainer.step(b, &[0.1], 1e-3).unwrap();
        }
        let count = ALLOCATIONS.get() - before;
        assert!(count <= 3, "images: {count} allocations in three steps");
    });
}
