// What all kernels share: the shape of a batch, matrix instructions in the precision chosen, asynchronous copies.
//
// PRECISION is 0 for f32 (each product as three of tf32 halves), 1 for tf32, 2 for bf16; sums are f32 always.

typedef unsigned int u32;
typedef unsigned long long u64;

// Every kernel begins with `in_turn`. It may have been started before the one it follows was done: it lets the next one start likewise, then waits
// until what came before has been written. Before it waits it may read tables, the shape, and weights that were laid out for chains, which do it in two steps.
__device__ __forceinline__ void next_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void in_turn() {
    next_may_start();
    wait_for_last();
}

__device__ __forceinline__ void bring_near(const void* from) {
    asm volatile("{.reg .u32 unused; ld.global.u32 unused, [%0];}" ::"l"(from));
}

// The same where the block's task is known: tables and shape do not change during a step, so they are read into the cache before the wait.
template <typename T>
__device__ __forceinline__ void in_turn(const T* task, const int* shape) {
    next_may_start();
    if (threadIdx.x * 128 < sizeof(T)) bring_near((const char*)task + threadIdx.x * 128);
    if (threadIdx.x == 31) bring_near(shape);
    wait_for_last();
}

// Rows with a meaning. `offsets` is the place of a set's offsets in the shape buffer, unless every example has `per_example` rows; with
// `per_dim` every row stands once for each input dimension.
struct Space {
    int offsets, per_example, per_dim;
};

// The shape buffer: number of examples, number of input dimensions, then the offsets of every set and of the union.
__device__ __forceinline__ int examples_of(const int* shape) { return shape[0]; }
__device__ __forceinline__ int dims_of(Space s, const int* shape) { return s.per_dim ? shape[1] : 1; }

// Elements before an example, dimensions not counted.
__device__ __forceinline__ int element(Space s, const int* shape, int example) {
    return s.per_example ? s.per_example * example : shape[s.offsets + example];
}

__device__ __forceinline__ int rows_of(Space s, const int* shape) {
    return element(s, shape, shape[0]) * dims_of(s, shape);
}

// The example an element belongs to.
__device__ __forceinline__ int example_of(Space s, const int* shape, int at) {
    if (s.per_example) return at / s.per_example;
    int lo = 0, hi = shape[0];
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (shape[s.offsets + mid] <= at) lo = mid; else hi = mid;
    }
    return lo;
}

// Matrix units cut the last 13 bits off; half of their unit added before makes that a rounding. What is no number stays none.
__device__ __forceinline__ u32 tf32(float x) { return x != x ? 0x7fc00000u : __float_as_uint(x) + 0x1000u; }

// The part of a number that matrix units see.
__device__ __forceinline__ float cut(u32 x) { return __uint_as_float(x & 0xffffe000u); }

__device__ __forceinline__ u32 bf16x2(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ u32 two_halves(float low, float high) {
    u32 x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

// Operands of a 16 by 8 by 8 product. Lane l has g = l / 4 and t = l % 4. A holds (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of
// its 16 by 8, B holds (t, g), (t + 4, g) of its 8 by 8, C holds (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
struct FragA {
#if PRECISION == 0
    u32 hi[4], lo[4];
    __device__ __forceinline__ void set(float a, float b, float c, float d) {
        float v[4] = {a, b, c, d};
#pragma unroll
        for (int i = 0; i < 4; i++) { hi[i] = tf32(v[i]); lo[i] = tf32(v[i] - cut(hi[i])); }
    }
#elif PRECISION == 1
    u32 v[4];
    __device__ __forceinline__ void set(float a, float b, float c, float d) {
        v[0] = tf32(a); v[1] = tf32(b); v[2] = tf32(c); v[3] = tf32(d);
    }
#else
    u32 v[2];
    __device__ __forceinline__ void set(float a, float b, float c, float d) { v[0] = bf16x2(a, c); v[1] = bf16x2(b, d); }
#endif
};

struct FragB {
#if PRECISION == 0
    u32 hi[2], lo[2];
    __device__ __forceinline__ void set(float a, float b) {
        hi[0] = tf32(a); hi[1] = tf32(b);
        lo[0] = tf32(a - cut(hi[0])); lo[1] = tf32(b - cut(hi[1]));
    }
#elif PRECISION == 1
    u32 v[2];
    __device__ __forceinline__ void set(float a, float b) { v[0] = tf32(a); v[1] = tf32(b); }
#else
    u32 v[1];
    __device__ __forceinline__ void set(float a, float b) { v[0] = bf16x2(a, b); }
#endif
};

__device__ __forceinline__ void mma_tf32(float* c, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// C += A B.
__device__ __forceinline__ void mma(float* c, const FragA& a, const FragB& b) {
#if PRECISION == 0
    mma_tf32(c, a.lo, b.hi);
    mma_tf32(c, a.hi, b.lo);
    mma_tf32(c, a.hi, b.hi);
#elif PRECISION == 1
    mma_tf32(c, a.v, b.v);
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.v[0]), "r"(a.v[1]), "r"(b.v[0]));
#endif
}

// For all of a lane's sums of N columns: which eight columns, and which of its four there.
template <int N, class F> __device__ __forceinline__ void each_number(F apply) {
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) apply(j, e);
}

// An address in shared memory. Kernels whose addresses change with every step keep them in this form, which takes one register and no conversion.
__device__ __forceinline__ u32 shared_at(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Four 8 by 4 blocks of numbers from shared memory, lane l receiving number l % 4 of row l / 4 of each; lane l names row l % 8 of block
// l / 8. As bits, for the matrix units: of bf16 numbers the blocks are 8 by 8, and a lane receives two neighbours.
__device__ __forceinline__ void load_bits(u32* r, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}

__device__ __forceinline__ void load_bits(u32* r, const void* row) { load_bits(r, shared_at(row)); }

// The same with rows and columns of every block of 8 by 8 numbers of 16 bits exchanged.
__device__ __forceinline__ void load_turned(u32* r, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}

__device__ __forceinline__ void load_turned(u32* r, const void* row) { load_turned(r, shared_at(row)); }

// As numbers.
__device__ __forceinline__ void load_blocks(float* v, u32 row) {
    u32 r[4];
    load_bits(r, row);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __uint_as_float(r[i]);
}

__device__ __forceinline__ void load_blocks(float* v, const float* row) { load_blocks(v, shared_at(row)); }

__device__ __forceinline__ void copy16(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
}

__device__ __forceinline__ void copy16(float* to, const float* from, bool valid) { copy16(shared_at(to), from, valid); }

__device__ __forceinline__ void copy4(float* to, const float* from, bool valid) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(valid ? 4 : 0));
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;"); }
// What was copied is not read before.
template <int LEFT> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Starts copying rows row0.. and columns col0.. of a row-major matrix into shared memory, R by C at a distance of STRIDE; zeros
// outside. `vec` if rows start at multiples of four numbers and are a multiple of four long.
template <int R, int C, int STRIDE, int THREADS>
__device__ __forceinline__ void load_tile(float* s, const float* g, int ld, int row0, int rows, int col0, int cols, bool vec) {
    if (vec) {
#pragma unroll
        for (int i = threadIdx.x; i < R * (C / 4); i += THREADS) {
            int r = i / (C / 4), c = (i % (C / 4)) * 4;
            bool ok = row0 + r < rows && col0 + c < cols;
            copy16(s + r * STRIDE + c, ok ? g + (size_t)(row0 + r) * ld + col0 + c : g, ok);
        }
    } else {
        for (int i = threadIdx.x; i < R * C; i += THREADS) {
            int r = i / C, c = i % C;
            bool ok = row0 + r < rows && col0 + c < cols;
            copy4(s + r * STRIDE + c, ok ? g + (size_t)(row0 + r) * ld + col0 + c : g, ok);
        }
    }
}


__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 operator-(float4 a, float b) { return make_float4(a.x - b, a.y - b, a.z - b, a.w - b); }
__device__ __forceinline__ float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ __forceinline__ float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
__device__ __forceinline__ float total(float4 a) { return (a.x + a.y) + (a.z + a.w); }

// Over neighbouring lanes.
template <int LANES> __device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ __forceinline__ float warp_sum(float x) { return lanes_sum<32>(x); }

// The larger of two numbers; none where one of them is none.
__device__ __forceinline__ float larger(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
