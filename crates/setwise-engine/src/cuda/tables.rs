//! The tasks kernels read, as they lie in device memory. Fields and order are those of the structs in `kernels`.

/// An address in device memory; zero for none.
pub type Address = u64;

/// Marks types made of plain numbers without gaps.
///
/// # Safety
/// Every byte of the type must belong to a field.
pub unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for Address {}

macro_rules! plain {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $t:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $(pub $field: $t),* }
            // SAFETY: the sum of the fields' sizes is checked to be the whole.
            unsafe impl Plain for $name {}
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$t>())*);
        )*
    };
}

plain! {
    struct Space { offsets: i32, per_example: i32, per_dim: i32 }
    struct Term { a: Address, b: Address, maps: Address, lda: i32, ldb: i32, k: i32, vec_a: i32, vec_b: i32, pad: i32 }
    struct TensorMap { opaque: [u64; 16] }
    struct ProductTask {
        terms: Address, y: Address, bias: Address, residual: Address, residual2: Address, gate: Address,
        gain: Address, shift: Address, normalised: Address, inv_std: Address,
        count: i32, ldy: i32, ldr: i32, ldr2: i32, ldg: i32, n: i32, activation: i32, accumulate: i32, pairs: i32, space: Space,
        steps: i32, stages: i32,
    }
    struct ChainTask { places: Address, weights: Address, space: Space, pad: i32 }
    struct ChainWeightTask { from: Address, to: Address, rows: i32, cols: i32, stride: i32, kind: i32 }
    struct TransposeTask { from: Address, to: Address, rows: i32, cols: i32 }
    struct WeightTask {
        dy: Address, x: Address, parts: Address, bias: Address, maps: Address,
        ldy: i32, ldx: i32, n: i32, k: i32, splits: i32, vec: i32, space: Space, pad: i32,
    }
    struct SumTask {
        parts: Address, out: Address, stride: u64, count: i32, len: i32, rows_per_part: i32, vec: i32, space: Space, fresh: i32,
    }
    struct ActivationTask { y: Address, dy: Address, ld: i32, cols: i32, activation: i32, pad: i32, space: Space, pad2: i32 }
    struct NormTask {
        inputs: [Address; 8], ld: [i32; 8], y: Address, gain: Address, shift: Address, normalised: Address, inv_std: Address,
        count: i32, ldy: i32, cols: i32, pad: i32, space: Space, pad2: i32,
    }
    struct NormBackwardTask {
        dy: Address, gain: Address, normalised: Address, inv_std: Address, parts: Address,
        copies: [Address; 2], gates: [Address; 2], ld_copies: [i32; 2], ld: i32, cols: i32, space: Space, rows: i32,
    }
    struct AddTask {
        inputs: [Address; 8], ld: [i32; 8], y: Address, count: i32, ldy: i32, cols: i32, accumulate: i32, space: Space, vec: i32,
    }
    struct HeadSlice { data: Address, ld: i32, pad: i32, space: Space, pad2: i32 }
    struct AttentionTask {
        query: HeadSlice, key: HeadSlice, value: HeadSlice, out: HeadSlice,
        d_query: HeadSlice, d_key: HeadSlice, d_value: HeadSlice, d_out: HeadSlice,
        stats: Address, scale: f32, heads: i32, width: i32, pad: i32,
    }
    struct PoolTask {
        x: Address, y: Address, ldy: i32, cols: i32, reduce: i32, dimensions: i32, accumulate: i32, pad: i32, space: Space, pad2: i32,
    }
    struct PoolBackwardTask { pool: PoolTask, dx: Address, dy: Address }
    struct UnionTask {
        sets: [Address; 64], encodings: [Address; 64], spaces: [Space; 64], add: [i32; 64], all: Address,
        count: i32, cols: i32, space: Space, pad: i32,
    }
    struct EncodingTask { rows: UnionTask, sums: [Address; 64] }
    struct RepeatTask { param: Address, y: Address, len: i32, pad: i32 }
    struct ConcatTask { x: Address, y: Address, len: i32, ldy: i32, at: i32, accumulate: i32 }
    struct DropoutTask {
        x: Address, y: Address, seed: Address, stream: u64, threshold: u64, scale: f32,
        ldx: i32, ldy: i32, cols: i32, accumulate: i32, space: Space,
    }
    struct PineTask {
        x: Address, spread: Address, shift: Address, y: Address, dx: Address, parts: Address, dy: Address,
        ldy: i32, projections: i32, each: i32, accumulate: i32, space: Space, pad: i32,
    }
    struct PairTask {
        own: Address, partner: Address, w: Address, bias: Address, y: Address, kept: Address, dy: Address,
        d_own: Address, d_partner: Address, d_kept: Address, parts: Address, map: Address,
        halves: Address, halves_map: Address, own_halves: Address, partner_halves: Address, largest: Address,
        own_wins: Address, partner_wins: Address, starts: Address,
        ld_own: i32, ld_partner: i32, ldy: i32, hidden: i32, outputs: i32, splits: i32, vec: i32, vec_y: i32, tile: i32,
        stages: i32, row_bytes: i32, sides: i32, space: Space, partners: Space,
    }
    struct ConvolveTask {
        x: Address, w: Address, bias: Address, y: Address, from_h: i32, from_w: i32, from_c: i32, to_h: i32, to_w: i32, n: i32,
        kernel: i32, up: i32, off: i32, turn: i32, down: i32, accumulate: i32, vec_a: i32, vec_b: i32, space: Space, pad: i32,
    }
    struct TurnTask { from: Address, to: Address, outputs: i32, taps: i32, channels: i32, pad: i32 }
    struct PatchTask {
        dy: Address, x: Address, parts: Address, from_h: i32, from_w: i32, from_c: i32, to_h: i32, to_w: i32, n: i32,
        kernel: i32, stride: i32, padding: i32, splits: i32, vec_dy: i32, vec_x: i32, space: Space, bias: i32,
    }
    struct Windows {
        from_h: i32, from_w: i32, from_c: i32, to_h: i32, to_w: i32, n: i32, kernel: i32, stride: i32, padding: i32, lines: i32, held: i32,
        space: Space,
    }
    struct FewTask { x: Address, w: Address, bias: Address, y: Address, moments: Address, windows: Windows }
    struct FewWeightsTask { dy: Address, x: Address, parts: Address, windows: Windows, splits: i32, pad: i32 }
    struct SameTask {
        x: Address, w: Address, y: Address, moments: Address, height: i32, width: i32, from_c: i32, n: i32, kernel: i32, turn: i32, accumulate: i32, space: Space,
    }
    struct SameWeightsTask {
        dy: Address, x: Address, parts: Address, height: i32, width: i32, from_c: i32, n: i32, splits: i32, space: Space,
    }
    struct BatchNormTask {
        x: Address, dy: Address, gain: Address, shift: Address, stats: Address, means: Address, y: Address, dx: Address, parts: Address,
        channels: i32, pixels: i32, relu: i32, accumulate: i32, width: i32, space: Space,
    }
    struct ChannelTask {
        values: Address, parts: Address, mean: Address, variance: Address, stats: Address, means: Address,
        d_gain: Address, d_shift: Address, d_mean: Address, d_variance: Address, count: i32, blocks: i32, channels: i32, pixels: i32,
    }
    struct MaxPoolTask {
        from: Address, to: Address, winners: Address, height: i32, width: i32, channels: i32, accumulate: i32, space: Space, pad: i32,
    }
    struct Controls { rate: f32, root: f32, keep: f32, clip: f32, seed: u64, matrices: f32, pad: f32 }
    struct Results { loss: f32, norm: f32, scale: f32, ok: f32 }
    struct LossTask { values: Address, targets: Address, grads: Address, width: i32, pad2: i32, space: Space, pad: i32 }
    struct LossTasks { outputs: Address, results: Address, count: i32, kind: i32, parameters: [f32; 8] }
    struct UpdateTask {
        params: Address, first: Address, second: Address, grads: Address, parts: Address, controls: Address, results: Address,
        len: u64, all: u64, matrices: Address, beta1: f32, beta2: f32, epsilon: f32, fresh: f32, momentum: f32, pad: f32,
    }
    struct MuonTask {
        params: Address, first: Address, grads: Address, parts: Address, x: Address, next: Address, gram: Address, square: Address,
        controls: Address, results: Address, rows: i32, cols: i32, shorter: i32, longer: i32, turned: i32,
        momentum: f32, gain: f32, margin: f32, tiny: f32, a: f32, b: f32, c: f32,
    }
}

/// Tables of tasks on their way to the device.
pub struct Tables {
    base: Address,
    bytes: Vec<u8>,
}

impl Tables {
    /// To lie at an address.
    pub fn new(base: Address) -> Self {
        Tables { base, bytes: Vec::new() }
    }

    /// Appends a table; returns where it will lie: at sixteen bytes, or 128 for what is as large.
    pub fn push<T: Plain>(&mut self, tasks: &[T]) -> Address {
        let alignment = if size_of::<T>() == 128 { 128 } else { 16 };
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
        let at = self.base + self.bytes.len() as u64;
        // SAFETY: plain types have no gaps.
        let raw = unsafe { std::slice::from_raw_parts(tasks.as_ptr().cast::<u8>(), size_of_val(tasks)) };
        self.bytes.extend_from_slice(raw);
        at
    }

    /// Everything so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
