// Operations that reduce or move rows: pooling, union, repeated and joined rows, dropout, sums of sigmoids.

struct PoolTask {
    float *x, *y;
    int ldy, cols, reduce, dimensions, accumulate, pad;
    Space space;
};

// Rows of segment `s` of a pooling: all rows of an example, or the rows of one element.
__device__ __forceinline__ int2 segment(const PoolTask& task, const int* shape, int s) {
    int dims = dims_of(task.space, shape);
    if (task.dimensions) return make_int2(s * dims, (s + 1) * dims);
    return make_int2(element(task.space, shape, s) * dims, element(task.space, shape, s + 1) * dims);
}

__device__ __forceinline__ int segments(const PoolTask& task, const int* shape) {
    return task.dimensions ? element(task.space, shape, shape[0]) : shape[0];
}

extern "C" __global__ void pool_forward(const PoolTask* tasks, const int* shape) {
    in_turn();
    const PoolTask task = tasks[blockIdx.y];
    size_t total = (size_t)segments(task, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int s = i / task.cols, c = i % task.cols;
        int2 rows = segment(task, shape, s);
        float v = task.reduce == 0 ? -3.4e38f : 0.0f;
        for (int r = rows.x; r < rows.y; r++) {
            float x = task.x[(size_t)r * task.cols + c];
            v = task.reduce == 0 ? (x > v || x != x ? x : v) : v + x;
        }
        task.y[(size_t)s * task.ldy + c] = task.reduce == 1 ? v / (rows.y - rows.x) : v;
    }
}

struct PoolBackwardTask {
    PoolTask pool;
    float* dx;
    const float* dy;
};

// The first of the largest takes a maximum's gradient.
extern "C" __global__ void pool_backward(const PoolBackwardTask* tasks, const int* shape) {
    in_turn();
    const PoolBackwardTask task = tasks[blockIdx.y];
    const PoolTask& pool = task.pool;
    size_t total = (size_t)segments(pool, shape) * pool.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int s = i / pool.cols, c = i % pool.cols;
        int2 rows = segment(pool, shape, s);
        float d = task.dy[(size_t)s * pool.ldy + c], best = pool.reduce == 0 ? pool.y[(size_t)s * pool.ldy + c] : 0.0f;
        bool open = true;
        for (int r = rows.x; r < rows.y; r++) {
            size_t at = (size_t)r * pool.cols + c;
            float v = d;
            if (pool.reduce == 1) v = d / (rows.y - rows.x);
            if (pool.reduce == 0) {
                bool wins = open && pool.x[at] == best;
                open = open && !wins;
                v = wins ? d : 0.0f;
            }
            task.dx[at] = pool.accumulate ? task.dx[at] + v : v;
        }
    }
}

#define MOST_SETS 64

struct UnionTask {
    float* sets[MOST_SETS];
    const float* encodings[MOST_SETS];
    Space spaces[MOST_SETS];
    int add[MOST_SETS];
    float* all;
    int count, cols;
    Space space;
    int pad;
};

// Where row `row` of the union lies among the sets.
__device__ __forceinline__ int2 union_place(const UnionTask& task, const int* shape, int row) {
    int dims = dims_of(task.space, shape), at = row / dims, e = example_of(task.space, shape, at);
    at -= element(task.space, shape, e);
    for (int k = 0; k < task.count; k++) {
        int n = element(task.spaces[k], shape, e + 1) - element(task.spaces[k], shape, e);
        if (at < n) return make_int2(k, (element(task.spaces[k], shape, e) + at) * dims + row % dims);
        at -= n;
    }
    return make_int2(0, 0);
}

extern "C" __global__ void to_union(const UnionTask* tasks, const int* shape) {
    in_turn();
    const UnionTask& task = tasks[blockIdx.y];
    size_t total = (size_t)rows_of(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.cols, c = i % task.cols;
        int2 place = union_place(task, shape, row);
        float v = task.sets[place.x][(size_t)place.y * task.cols + c];
        task.all[i] = task.encodings[place.x] ? v + task.encodings[place.x][c] : v;
    }
}

// To the sets, added to what is there where `add`.
extern "C" __global__ void from_union(const UnionTask* tasks, const int* shape) {
    in_turn();
    const UnionTask& task = tasks[blockIdx.y];
    size_t total = (size_t)rows_of(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.cols, c = i % task.cols;
        int2 place = union_place(task, shape, row);
        if (!task.sets[place.x]) continue;
        float* to = task.sets[place.x] + (size_t)place.y * task.cols + c;
        *to = task.add[place.x] ? *to + task.all[i] : task.all[i];
    }
}

// From the sets to the union's gradient; `add` of the first set says whether to add.
extern "C" __global__ void union_gradient(const UnionTask* tasks, const int* shape) {
    in_turn();
    const UnionTask& task = tasks[blockIdx.y];
    size_t total = (size_t)rows_of(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.cols, c = i % task.cols;
        int2 place = union_place(task, shape, row);
        float v = task.sets[place.x][(size_t)place.y * task.cols + c];
        task.all[i] = task.add[0] ? task.all[i] + v : v;
    }
}

struct EncodingTask {
    UnionTask rows;
    float* sums[MOST_SETS];
};

// Gradients of the sets' encodings: column sums of the union's gradient, one block per set and column.
extern "C" __global__ void encoding_gradient(const EncodingTask* tasks, const int* shape) {
    in_turn();
    const EncodingTask& task = tasks[0];
    int k = blockIdx.y, c = blockIdx.x;
    __shared__ float sums[128];
    float sum = 0.0f;
    int total = rows_of(task.rows.space, shape);
    for (int row = threadIdx.x; row < total; row += 128)
        if (union_place(task.rows, shape, row).x == k) sum += task.rows.all[(size_t)row * task.rows.cols + c];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 128; i++) sum += sums[i];
        task.sums[k][c] += sum;
    }
}

struct RepeatTask {
    const float* param;
    float* y;
    int len, pad;
};

extern "C" __global__ void repeat_forward(const RepeatTask* tasks, const int* shape) {
    in_turn();
    const RepeatTask task = tasks[blockIdx.y];
    size_t total = (size_t)shape[0] * task.len;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x)
        task.y[i] = task.param[i % task.len];
}

// param += Σ over examples.
extern "C" __global__ void repeat_backward(const RepeatTask* tasks, const int* shape) {
    in_turn();
    const RepeatTask task = tasks[blockIdx.y];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= task.len) return;
    float sum = 0.0f;
    for (int e = 0; e < shape[0]; e++) sum += task.y[(size_t)e * task.len + i];
    const_cast<float*>(task.param)[i] += sum;
}

// One input of a concatenation: `len` numbers per example, from `at` of the output's row.
struct ConcatTask {
    float *x, *y;
    int len, ldy, at, accumulate;
};

extern "C" __global__ void concat_forward(const ConcatTask* tasks, const int* shape) {
    in_turn();
    const ConcatTask task = tasks[blockIdx.y];
    size_t total = (size_t)shape[0] * task.len;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x)
        task.y[i / task.len * task.ldy + task.at + i % task.len] = task.x[i];
}

extern "C" __global__ void concat_backward(const ConcatTask* tasks, const int* shape) {
    in_turn();
    const ConcatTask task = tasks[blockIdx.y];
    size_t total = (size_t)shape[0] * task.len;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        float d = task.y[i / task.len * task.ldy + task.at + i % task.len];
        task.x[i] = task.accumulate ? task.x[i] + d : d;
    }
}

struct DropoutTask {
    const float* x;
    float* y;
    const u64* seed;
    u64 stream, threshold;
    float scale;
    int ldx, ldy, cols, accumulate;
    Space space;
};

__device__ __forceinline__ u64 mixed(u64 z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

extern "C" __global__ void dropout(const DropoutTask* tasks, const int* shape) {
    in_turn();
    const DropoutTask task = tasks[blockIdx.y];
    u64 seed = mixed(*task.seed ^ mixed(task.stream + 0x9e3779b97f4a7c15ull));
    size_t total = (size_t)rows_of(task.space, shape) * task.cols;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        size_t row = i / task.cols, c = i % task.cols, at = row * task.ldy + c;
        float v = (mixed(seed + i) >> 32) < task.threshold ? 0.0f : task.x[row * task.ldx + c] * task.scale;
        task.y[at] = task.accumulate ? task.y[at] + v : v;
    }
}

// y[p, j] = Σ_i sigmoid(x_i[p] · spread[p, j] + shift[p, j]).
struct PineTask {
    const float *x, *spread, *shift;
    float* y;
    float *dx, *parts;
    const float* dy;
    int ldy, projections, each, accumulate;
    Space space;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

extern "C" __global__ void pine_forward(const PineTask* tasks, const int* shape) {
    in_turn();
    const PineTask task = tasks[blockIdx.z];
    int e = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x, width = task.projections * task.each;
    if (e >= shape[0] || i >= width) return;
    float u = task.spread[i], v = task.shift[i], sum = 0.0f;
    for (int r = element(task.space, shape, e); r < element(task.space, shape, e + 1); r++)
        sum += sigmoid(task.x[(size_t)r * task.projections + i / task.each] * u + v);
    task.y[(size_t)e * task.ldy + i] = sum;
}

// Parts [examples][2 · width] of the gradients of spread and shift.
extern "C" __global__ void pine_backward(const PineTask* tasks, const int* shape) {
    in_turn();
    const PineTask task = tasks[blockIdx.z];
    int e = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x, width = task.projections * task.each;
    if (e >= shape[0] || i >= width) return;
    float u = task.spread[i], v = task.shift[i], g = task.dy[(size_t)e * task.ldy + i], du = 0.0f, dv = 0.0f;
    for (int r = element(task.space, shape, e); r < element(task.space, shape, e + 1); r++) {
        float x = task.x[(size_t)r * task.projections + i / task.each], s = sigmoid(x * u + v), d = g * s * (1.0f - s);
        du += d * x;
        dv += d;
    }
    task.parts[(size_t)e * 2 * width + i] = du;
    task.parts[(size_t)e * 2 * width + width + i] = dv;
}

extern "C" __global__ void pine_inputs(const PineTask* tasks, const int* shape) {
    in_turn();
    const PineTask task = tasks[blockIdx.z];
    size_t total = (size_t)rows_of(task.space, shape) * task.projections;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total; i += (size_t)gridDim.x * blockDim.x) {
        int row = i / task.projections, p = i % task.projections, e = example_of(task.space, shape, row);
        float x = task.x[i], sum = 0.0f;
        for (int j = p * task.each; j < (p + 1) * task.each; j++) {
            float s = sigmoid(x * task.spread[j] + task.shift[j]);
            sum += task.dy[(size_t)e * task.ldy + j] * s * (1.0f - s) * task.spread[j];
        }
        task.dx[i] = task.accumulate ? task.dx[i] + sum : sum;
    }
}
