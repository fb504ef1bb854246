// Operations that reduce or move rows: pooling, union, repeated parameters, concatenation, dropout, PINE's sums of
// sigmoids. Every kernel is memory-bound; unless stated, its grid is (blocks, tasks), grid-stride over output numbers.

// Values of `reduce` (`Reduce` in program/ops.rs), and what a maximum starts from.
#define POOL_MAX 0
#define POOL_MEAN 1
#define MIN_POOLED -3.4e38f

// x [rows, cols], y [segments, cols] with row stride ldy. A segment is an example or, with `dimensions`, an element.
struct PoolTask {
    float *x, *y;
    int ldy, cols, reduce, dimensions, accumulate, pad;
    Space space;
};

// Row range of segment `s`: all rows of an example, or the rows of one element.
__device__ __forceinline__ int2 segment(const PoolTask& task, const int* shape, int s) {
    int dims = dim_count(task.space, shape);
    if (task.dimensions) return make_int2(s * dims, (s + 1) * dims);
    return make_int2(element_offset(task.space, shape, s) * dims, element_offset(task.space, shape, s + 1) * dims);
}

__device__ __forceinline__ int segments(const PoolTask& task, const int* shape) {
    return task.dimensions ? element_offset(task.space, shape, shape[0]) : shape[0];
}

// y[s, c] = max, mean or sum (`reduce`) of x[r, c] over the rows r of segment s. A thread owns one (s, c). y is
// written.
extern "C" __global__ void pool_forward(const PoolTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PoolTask task = tasks[blockIdx.y];
    size_t total = (size_t)segments(task, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int s = i / task.cols, c = i % task.cols;
        int2 rows = segment(task, shape, s);
        float v = task.reduce == POOL_MAX ? MIN_POOLED : 0.0f;
        for (int r = rows.x; r < rows.y; r++) {
            float x = task.x[(size_t)r * task.cols + c];
            v = task.reduce == POOL_MAX ? (x > v || x != x ? x : v) : v + x;
        }
        task.y[(size_t)s * task.ldy + c] = task.reduce == POOL_MEAN ? v / (rows.y - rows.x) : v;
    }
}

struct PoolBackwardTask {
    PoolTask pool;
    float* dx;
    const float* dy;
};

// dx[r, c] = dy[s, c] for a sum, dy / n for a mean. For a max, dy goes to the first maximal row and the others get
// zero. A thread owns one (s, c) and all its rows. dx [rows, cols] is written, or added to if `accumulate`.
extern "C" __global__ void pool_backward(const PoolBackwardTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PoolBackwardTask task = tasks[blockIdx.y];
    const PoolTask& pool = task.pool;
    size_t total = (size_t)segments(pool, shape) * pool.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int s = i / pool.cols, c = i % pool.cols;
        int2 rows = segment(pool, shape, s);
        float d = task.dy[(size_t)s * pool.ldy + c], max_value = pool.reduce == POOL_MAX ? pool.y[(size_t)s * pool.ldy + c] : 0.0f;
        bool searching = true;
        for (int r = rows.x; r < rows.y; r++) {
            size_t at = (size_t)r * pool.cols + c;
            float v = d;
            if (pool.reduce == POOL_MEAN) v = d / (rows.y - rows.x);
            if (pool.reduce == POOL_MAX) {
                bool is_argmax = searching && pool.x[at] == max_value;
                searching = searching && !is_argmax;
                v = is_argmax ? d : 0.0f;
            }
            task.dx[at] = pool.accumulate ? task.dx[at] + v : v;
        }
    }
}

#define MAX_SETS 64

// `count` sets [rows, cols] and their union `all` [rows, cols]; encodings [cols] or null. In backward passes all are
// gradients.
struct UnionTask {
    float* sets[MAX_SETS];
    const float* encodings[MAX_SETS];
    Space spaces[MAX_SETS];
    int accumulate[MAX_SETS];
    float* all;
    int count, cols;
    Space space;
    int pad;
};

// The set and the row in it that row `row` of the union stands for.
__device__ __forceinline__ int2 set_row(const UnionTask& task, const int* shape, int row) {
    int dims = dim_count(task.space, shape), at = row / dims, e = example_of(task.space, shape, at);
    at -= element_offset(task.space, shape, e);
    for (int k = 0; k < task.count; k++) {
        int n = element_offset(task.spaces[k], shape, e + 1) - element_offset(task.spaces[k], shape, e);
        if (at < n) return make_int2(k, (element_offset(task.spaces[k], shape, e) + at) * dims + row % dims);
        at -= n;
    }
    return make_int2(0, 0);
}

// all[row] = sets[k][r] (+ encodings[k]): gathers the rows of all sets, example by example. `all` is written.
extern "C" __global__ void to_union(const UnionTask* tasks, const int* shape) {
    grid_dependency_sync();
    const UnionTask& task = tasks[blockIdx.y];
    size_t total = (size_t)row_count(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.cols, c = i % task.cols;
        int2 at = set_row(task, shape, row);
        float v = task.sets[at.x][(size_t)at.y * task.cols + c];
        task.all[i] = task.encodings[at.x] ? v + task.encodings[at.x][c] : v;
    }
}

// sets[k][r] = all[row], or += where `accumulate[k]`: scatters the union's rows. Sets without an address are skipped.
extern "C" __global__ void from_union(const UnionTask* tasks, const int* shape) {
    grid_dependency_sync();
    const UnionTask& task = tasks[blockIdx.y];
    size_t total = (size_t)row_count(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.cols, c = i % task.cols;
        int2 at = set_row(task, shape, row);
        if (!task.sets[at.x]) continue;
        float* to = task.sets[at.x] + (size_t)at.y * task.cols + c;
        *to = task.accumulate[at.x] ? *to + task.all[i] : task.all[i];
    }
}

// all[row] = sets[k][r], or += if `accumulate[0]`: the backward pass of `from_union`.
extern "C" __global__ void from_union_backward(const UnionTask* tasks, const int* shape) {
    grid_dependency_sync();
    const UnionTask& task = tasks[blockIdx.y];
    size_t total = (size_t)row_count(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.cols, c = i % task.cols;
        int2 at = set_row(task, shape, row);
        float v = task.sets[at.x][(size_t)at.y * task.cols + c];
        task.all[i] = task.accumulate[0] ? task.all[i] + v : v;
    }
}

// The union's gradient (`rows.all`) and the gradients of the encodings, [cols] each.
struct EncodingTask {
    UnionTask rows;
    float* sums[MAX_SETS];
};

// sums[k][c] += Σ all[row, c] over the union's rows of set k: gradients of the set encodings. Grid: (columns, sets); a
// block owns one sum and adds its threads' sums in order.
extern "C" __global__ void set_encoding_grad(const EncodingTask* tasks, const int* shape) {
    grid_dependency_sync();
    const EncodingTask& task = tasks[0];
    int k = blockIdx.y, c = blockIdx.x;
    __shared__ float sums[128];
    float sum = 0.0f;
    int total = row_count(task.rows.space, shape);
    for (int row = threadIdx.x; row < total; row += 128)
        if (set_row(task.rows, shape, row).x == k) sum += task.rows.all[(size_t)row * task.rows.cols + c];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 128; i++) sum += sums[i];
        task.sums[k][c] += sum;
    }
}

// `param` [len], y [examples, len].
struct RepeatTask {
    const float* param;
    float* y;
    int len, pad;
};

// y[e, i] = param[i] for every example e. y is written.
extern "C" __global__ void repeat_forward(const RepeatTask* tasks, const int* shape) {
    grid_dependency_sync();
    const RepeatTask task = tasks[blockIdx.y];
    size_t total = (size_t)shape[0] * task.len;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x)
        task.y[i] = task.param[i % task.len];
}

// param[i] += Σ_e y[e, i]; `param` and `y` are gradients here. A thread owns one i.
extern "C" __global__ void repeat_backward(const RepeatTask* tasks, const int* shape) {
    grid_dependency_sync();
    const RepeatTask task = tasks[blockIdx.y];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= task.len) return;
    float sum = 0.0f;
    for (int e = 0; e < shape[0]; e++) sum += task.y[(size_t)e * task.len + i];
    const_cast<float*>(task.param)[i] += sum;
}

// One input of a concatenation: `len` numbers per example, at offset `at` of the output's row.
struct ConcatTask {
    float *x, *y;
    int len, ldy, at, accumulate;
};

// y[e, at + i] = x[e, i]. y is written.
extern "C" __global__ void concat_forward(const ConcatTask* tasks, const int* shape) {
    grid_dependency_sync();
    const ConcatTask task = tasks[blockIdx.y];
    size_t total = (size_t)shape[0] * task.len;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x)
        task.y[i / task.len * task.ldy + task.at + i % task.len] = task.x[i];
}

// x[e, i] = y[e, at + i], or += if `accumulate`; both are gradients.
extern "C" __global__ void concat_backward(const ConcatTask* tasks, const int* shape) {
    grid_dependency_sync();
    const ConcatTask task = tasks[blockIdx.y];
    size_t total = (size_t)shape[0] * task.len;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        float d = task.y[i / task.len * task.ldy + task.at + i % task.len];
        task.x[i] = task.accumulate ? task.x[i] + d : d;
    }
}

// x and y [rows, cols] with row strides ldx and ldy; `seed` changes with every batch, `stream` with the operation.
struct DropoutTask {
    const float* x;
    float* y;
    const u64* seed;
    u64 stream, threshold;
    float scale;
    int ldx, ldy, cols, accumulate;
    Space space;
};

// One step of the SplitMix64 generator.
__device__ __forceinline__ u64 splitmix64(u64 z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// y[i] = x[i] · scale, or 0 with probability threshold / 2³²; += if `accumulate`. The mask is a hash of seed, stream
// and i, so the backward pass repeats it without storage.
extern "C" __global__ void dropout(const DropoutTask* tasks, const int* shape) {
    grid_dependency_sync();
    const DropoutTask task = tasks[blockIdx.y];
    u64 seed = splitmix64(*task.seed ^ splitmix64(task.stream + 0x9e3779b97f4a7c15ull));
    size_t total = (size_t)row_count(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        size_t row = i / task.cols, c = i % task.cols, at = row * task.ldy + c;
        float v = (splitmix64(seed + i) >> 32) < task.threshold ? 0.0f : task.x[row * task.ldx + c] * task.scale;
        task.y[at] = task.accumulate ? task.y[at] + v : v;
    }
}

// y[p, j] = Σ_i sigmoid(x_i[p] · spread[p, j] + shift[p, j]) over the elements i of an example. x [elements,
// projections], spread and shift [projections, per_projection], y [examples, projections · per_projection] with row
// stride ldy.
struct PineTask {
    const float *x, *spread, *shift;
    float* y;
    float *dx, *partials;
    const float* dy;
    int ldy, projections, per_projection, accumulate;
    Space space;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// Grid: (columns / 128, examples, tasks). A thread owns one column (p, j) of an example's y, which is written.
extern "C" __global__ void pine_forward(const PineTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PineTask task = tasks[blockIdx.z];
    int e = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x, width = task.projections * task.per_projection;
    if (e >= shape[0] || i >= width) return;
    float spread = task.spread[i], shift = task.shift[i], sum = 0.0f;
    for (int r = element_offset(task.space, shape, e); r < element_offset(task.space, shape, e + 1); r++)
        sum += sigmoid(task.x[(size_t)r * task.projections + i / task.per_projection] * spread + shift);
    task.y[(size_t)e * task.ldy + i] = sum;
}

// Partial sums [examples][2 · width] of the gradients of spread, then of shift, written. Grid and ownership as in
// `pine_forward`.
extern "C" __global__ void pine_backward(const PineTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PineTask task = tasks[blockIdx.z];
    int e = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x, width = task.projections * task.per_projection;
    if (e >= shape[0] || i >= width) return;
    float spread = task.spread[i], shift = task.shift[i], g = task.dy[(size_t)e * task.ldy + i], d_spread = 0.0f, d_shift = 0.0f;
    for (int r = element_offset(task.space, shape, e); r < element_offset(task.space, shape, e + 1); r++) {
        float x = task.x[(size_t)r * task.projections + i / task.per_projection], s = sigmoid(x * spread + shift), d = g * s * (1.0f - s);
        d_spread += d * x;
        d_shift += d;
    }
    task.partials[(size_t)e * 2 * width + i] = d_spread;
    task.partials[(size_t)e * 2 * width + width + i] = d_shift;
}

// dx_i[p] = Σ_j dy[p, j] · s (1 − s) · spread[p, j] with s = sigmoid(x_i[p] · spread[p, j] + shift[p, j]). A thread
// owns one (i, p). dx is written, or added to if `accumulate`. Grid: (blocks, 1, tasks), grid-stride.
extern "C" __global__ void pine_input_grad(const PineTask* tasks, const int* shape) {
    grid_dependency_sync();
    const PineTask task = tasks[blockIdx.z];
    size_t total = (size_t)row_count(task.space, shape) * task.projections;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.projections, p = i % task.projections, e = example_of(task.space, shape, row);
        float x = task.x[i], sum = 0.0f;
        for (int j = p * task.per_projection; j < (p + 1) * task.per_projection; j++) {
            float s = sigmoid(x * task.spread[j] + task.shift[j]);
            sum += task.dy[(size_t)e * task.ldy + j] * s * (1.0f - s) * task.spread[j];
        }
        task.dx[i] = task.accumulate ? task.dx[i] + sum : sum;
    }
}
