//! Task structs: the arguments of kernels, as they lie in device memory. Fields and their order are those of the
//! structs in `kernels/`.

/// An address in device memory; zero is null.
pub type DevicePtr = u64;

/// Types of plain numbers without padding, which can be copied to and from the device byte by byte.
///
/// # Safety
/// Every byte must belong to a field, and every bit pattern must be a valid value.
pub unsafe trait PlainData: Copy {}

// SAFETY: an integer.
unsafe impl PlainData for u64 {}
// SAFETY: an integer.
unsafe impl PlainData for i32 {}
// SAFETY: an integer.
unsafe impl PlainData for u8 {}
// SAFETY: an integer.
unsafe impl PlainData for u32 {}
// SAFETY: a number; every bit pattern is one.
unsafe impl PlainData for f32 {}
// SAFETY: a number; every bit pattern is one.
unsafe impl PlainData for f64 {}

macro_rules! plain_data {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $t:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $(pub $field: $t),* }
            // SAFETY: all fields are numbers, arrays of numbers or such structs. The assertion below excludes padding.
            unsafe impl PlainData for $name {}
            const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$t>())*);
        )*
    };
}

plain_data! {
    struct Space { offsets: i32, per_example: i32, per_dim: i32 }
    struct LinearTerm {
        a: DevicePtr, b: DevicePtr, maps: DevicePtr, lda: i32, ldb: i32, k: i32, vec_a: i32, vec_b: i32, pad: i32,
    }
    struct TensorMap { opaque: [u64; 16] }
    struct LinearTask {
        terms: DevicePtr, y: DevicePtr, bias: DevicePtr, residual: DevicePtr, residual2: DevicePtr, gate: DevicePtr,
        gain: DevicePtr, shift: DevicePtr, normalised: DevicePtr, inv_std: DevicePtr, count: i32, ldy: i32, ldr: i32,
        ldr2: i32, ldg: i32, n: i32, activation: i32, accumulate: i32, pairs: i32, space: Space, steps: i32,
        stages: i32,
    }
    struct PermutedSumsTask {
        points: DevicePtr, members: DevicePtr, first: DevicePtr, row_sums: DevicePtr, rows: i32, dim: i32,
        permutations: i32, kernel: i32, rate: f32, pad: i32,
    }
    struct RowKernelTask { addresses: DevicePtr, weights: DevicePtr, space: Space, pad: i32 }
    struct PackWeightsTask { from: DevicePtr, to: DevicePtr, rows: i32, cols: i32, stride: i32, kind: i32 }
    struct TransposeTask { from: DevicePtr, to: DevicePtr, rows: i32, cols: i32 }
    struct WeightGradTask {
        dy: DevicePtr, x: DevicePtr, partials: DevicePtr, bias: DevicePtr, maps: DevicePtr, ldy: i32, ldx: i32,
        n: i32, k: i32, splits: i32, vec: i32, space: Space, pad: i32,
    }
    struct PartialSumTask {
        partials: DevicePtr, out: DevicePtr, stride: u64, count: i32, len: i32, rows_per_partial: i32, vec: i32,
        space: Space, overwrite: i32,
    }
    struct ActivationTask {
        y: DevicePtr, dy: DevicePtr, ld: i32, cols: i32, activation: i32, pad: i32, space: Space, pad2: i32,
    }
    struct AddNormTask {
        inputs: [DevicePtr; 8], ld: [i32; 8], y: DevicePtr, gain: DevicePtr, shift: DevicePtr, normalised: DevicePtr,
        inv_std: DevicePtr, count: i32, ldy: i32, cols: i32, pad: i32, space: Space, pad2: i32,
    }
    struct NormBackwardTask {
        dy: DevicePtr, gain: DevicePtr, normalised: DevicePtr, inv_std: DevicePtr, partials: DevicePtr,
        residual_grads: [DevicePtr; 2], residual_gates: [DevicePtr; 2], ld_residual_grads: [i32; 2], ld: i32,
        cols: i32, space: Space, rows: i32,
    }
    struct AddTask {
        inputs: [DevicePtr; 8], ld: [i32; 8], y: DevicePtr, count: i32, ldy: i32, cols: i32, accumulate: i32,
        space: Space, vec: i32,
    }
    struct HeadSlice { data: DevicePtr, ld: i32, pad: i32, space: Space, pad2: i32 }
    struct AttentionTask {
        query: HeadSlice, key: HeadSlice, value: HeadSlice, out: HeadSlice, d_query: HeadSlice, d_key: HeadSlice,
        d_value: HeadSlice, d_out: HeadSlice, stats: DevicePtr, scale: f32, heads: i32, width: i32, pad: i32,
    }
    struct PoolTask {
        x: DevicePtr, y: DevicePtr, ldy: i32, cols: i32, reduce: i32, dimensions: i32, accumulate: i32, pad: i32,
        space: Space, pad2: i32,
    }
    struct PoolBackwardTask { pool: PoolTask, dx: DevicePtr, dy: DevicePtr }
    struct UnionTask {
        sets: [DevicePtr; 64], encodings: [DevicePtr; 64], spaces: [Space; 64], accumulate: [i32; 64], all: DevicePtr,
        count: i32, cols: i32, space: Space, pad: i32,
    }
    struct EncodingTask { rows: UnionTask, sums: [DevicePtr; 64] }
    struct RepeatTask { param: DevicePtr, y: DevicePtr, len: i32, pad: i32 }
    struct ConcatTask { x: DevicePtr, y: DevicePtr, len: i32, ldy: i32, at: i32, accumulate: i32 }
    struct DropoutTask {
        x: DevicePtr, y: DevicePtr, seed: DevicePtr, stream: u64, threshold: u64, scale: f32, ldx: i32, ldy: i32,
        cols: i32, accumulate: i32, space: Space,
    }
    struct PineTask {
        x: DevicePtr, spread: DevicePtr, shift: DevicePtr, y: DevicePtr, dx: DevicePtr, partials: DevicePtr,
        dy: DevicePtr, ldy: i32, projections: i32, per_projection: i32, accumulate: i32, space: Space, pad: i32,
    }
    struct PairTask {
        left: DevicePtr, right: DevicePtr, w: DevicePtr, bias: DevicePtr, y: DevicePtr, saved: DevicePtr,
        dy: DevicePtr, d_left: DevicePtr, d_right: DevicePtr, d_saved: DevicePtr, partials: DevicePtr,
        w_map: DevicePtr, w_f16: DevicePtr, w_f16_map: DevicePtr, left_f16: DevicePtr, right_f16: DevicePtr,
        max_abs: DevicePtr, left_entries: DevicePtr, right_entries: DevicePtr, right_starts: DevicePtr, ld_left: i32,
        ld_right: i32, ldy: i32, hidden: i32, outputs: i32, splits: i32, vec: i32, vec_y: i32, tile: i32, stages: i32,
        row_bytes: i32, grad_sides: i32, space: Space, right_space: Space,
    }
    struct ConvolutionTask {
        x: DevicePtr, w: DevicePtr, bias: DevicePtr, y: DevicePtr, from_h: i32, from_w: i32, from_c: i32, to_h: i32,
        to_w: i32, n: i32, kernel: i32, stride: i32, offset: i32, tap_sign: i32, input_dilation: i32, accumulate: i32,
        vec_a: i32, vec_b: i32, space: Space, pad: i32,
    }
    struct TransposeWeightsTask { from: DevicePtr, to: DevicePtr, outputs: i32, taps: i32, channels: i32, pad: i32 }
    struct ConvolutionWeightGradTask {
        dy: DevicePtr, x: DevicePtr, partials: DevicePtr, from_h: i32, from_w: i32, from_c: i32, to_h: i32, to_w: i32,
        n: i32, kernel: i32, stride: i32, padding: i32, splits: i32, vec_dy: i32, vec_x: i32, space: Space, bias: i32,
    }
    struct BandGeometry {
        from_h: i32, from_w: i32, from_c: i32, to_h: i32, to_w: i32, n: i32, kernel: i32, stride: i32, padding: i32,
        lines: i32, band_numbers: i32, space: Space,
    }
    struct SmallChannelTask {
        x: DevicePtr, w: DevicePtr, bias: DevicePtr, y: DevicePtr, moments: DevicePtr, geometry: BandGeometry,
    }
    struct SmallChannelWeightGradTask {
        dy: DevicePtr, x: DevicePtr, partials: DevicePtr, geometry: BandGeometry, splits: i32, pad: i32,
    }
    struct SameConvolutionTask {
        x: DevicePtr, w: DevicePtr, y: DevicePtr, moments: DevicePtr, height: i32, width: i32, from_c: i32, n: i32,
        kernel: i32, tap_sign: i32, accumulate: i32, space: Space,
    }
    struct SameWeightGradTask {
        dy: DevicePtr, x: DevicePtr, partials: DevicePtr, height: i32, width: i32, from_c: i32, n: i32, splits: i32,
        space: Space,
    }
    struct BatchNormTask {
        x: DevicePtr, dy: DevicePtr, gain: DevicePtr, shift: DevicePtr, stats: DevicePtr, neg_grad_means: DevicePtr,
        y: DevicePtr, dx: DevicePtr, partials: DevicePtr, channels: i32, pixels: i32, relu: i32, accumulate: i32,
        width: i32, space: Space,
    }
    struct ChannelStatsTask {
        values: DevicePtr, partials: DevicePtr, mean: DevicePtr, variance: DevicePtr, stats: DevicePtr,
        neg_grad_means: DevicePtr, d_gain: DevicePtr, d_shift: DevicePtr, d_mean: DevicePtr, d_variance: DevicePtr,
        count: i32, blocks: i32, channels: i32, pixels: i32,
    }
    struct MaxPoolTask {
        from: DevicePtr, to: DevicePtr, argmax: DevicePtr, height: i32, width: i32, channels: i32, accumulate: i32,
        space: Space, pad: i32,
    }
    struct Controls { rate: f32, inv_sqrt_bias2: f32, decay: f32, clip: f32, seed: u64, muon_rate: f32, pad: f32 }
    struct Results { loss: f32, grad_norm: f32, clip_scale: f32, finite: f32 }
    struct LossTask {
        values: DevicePtr, targets: DevicePtr, grads: DevicePtr, width: i32, pad2: i32, space: Space, pad: i32,
    }
    struct LossTasks { outputs: DevicePtr, results: DevicePtr, count: i32, kind: i32, parameters: [f32; 8] }
    struct UpdateTask {
        params: DevicePtr, first: DevicePtr, second: DevicePtr, grads: DevicePtr, partials: DevicePtr,
        controls: DevicePtr, results: DevicePtr, trained: u64, all: u64, muon_mask: DevicePtr, beta1: f32, beta2: f32,
        epsilon: f32, average_rate: f32, momentum: f32, pad: f32,
    }
    struct MuonTask {
        params: DevicePtr, first: DevicePtr, grads: DevicePtr, partials: DevicePtr, x: DevicePtr, next: DevicePtr,
        gram: DevicePtr, polynomial: DevicePtr, controls: DevicePtr, results: DevicePtr, rows: i32, cols: i32,
        shorter: i32, longer: i32, transposed: i32, momentum: f32, gain: f32, margin: f32, tiny: f32, a: f32, b: f32,
        c: f32,
    }
}

/// Tasks of all launches, assembled on the host and copied to the device at once.
pub struct TaskTable {
    base: DevicePtr,
    bytes: Vec<u8>,
}

impl TaskTable {
    /// A table for the device address `base`.
    pub fn new(base: DevicePtr) -> Self {
        TaskTable { base, bytes: Vec::new() }
    }

    /// Appends tasks and returns their device address, aligned to 16 bytes, or to 128 for tasks of 128 bytes.
    pub fn push<T: PlainData>(&mut self, tasks: &[T]) -> DevicePtr {
        let alignment = if size_of::<T>() == 128 { 128 } else { 16 };
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
        let at = self.base + self.bytes.len() as u64;
        // SAFETY: `PlainData` has no padding, so all bytes are initialised; the slice covers exactly `tasks`.
        let raw = unsafe { std::slice::from_raw_parts(tasks.as_ptr().cast::<u8>(), size_of_val(tasks)) };
        self.bytes.extend_from_slice(raw);
        at
    }

    /// Everything so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
