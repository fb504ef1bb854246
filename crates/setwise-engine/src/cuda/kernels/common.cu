// Shared by all kernels: the shape of a batch, matrix instructions in the chosen precision, asynchronous copies.
//
// PRECISION is 0 for f32 (each product is three products of tf32 pairs), 1 for tf32, 2 for bf16. Accumulators are
// always f32.

typedef unsigned int u32;
typedef unsigned long long u64;

// Values of `activation` in tasks (`Activation` in program/ops.rs).
#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1
#define ACTIVATION_SIGMOID 2

// Added to a variance before its root.
#define LAYER_NORM_EPSILON 1e-5f

// Programmatic dependent launch. A kernel may start before its predecessor in the stream ends. Every kernel begins with
// `grid_dependency_sync`: it allows its own successor to start early, then waits until the predecessor's writes are
// visible. Before the wait a kernel may read only task tables, the shape buffer and packed weights. Row kernels issue
// the two steps separately.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void grid_dependency_sync() {
    launch_dependents();
    grid_dependency_wait();
}

// Reads one word, which brings its cache line near.
__device__ __forceinline__ void prefetch_line(const void* from) {
    asm volatile("{.reg .u32 unused; ld.global.u32 unused, [%0];}" ::"l"(from));
}

// The same with a prefetch. Task tables and shape are constant during a step, so they are read into the cache before
// the wait.
template <typename T>
__device__ __forceinline__ void grid_dependency_sync(const T* task, const int* shape) {
    launch_dependents();
    if (threadIdx.x * 128 < sizeof(T)) prefetch_line((const char*)task + threadIdx.x * 128);
    if (threadIdx.x == 31) prefetch_line(shape);
    grid_dependency_wait();
}

// The rows of a value. `offsets` is the index of the set's offsets in the shape buffer. If `per_example` is not zero,
// every example has that many rows. With `per_dim`, an element has one row for each input dimension.
struct Space {
    int offsets, per_example, per_dim;
};

// The shape buffer: number of examples, number of input dimensions, then the offsets of every set and of the union.
__device__ __forceinline__ int example_count(const int* shape) { return shape[0]; }
__device__ __forceinline__ int dim_count(Space s, const int* shape) { return s.per_dim ? shape[1] : 1; }

// Index of an example's first element; input dimensions are not counted.
__device__ __forceinline__ int element_offset(Space s, const int* shape, int example) {
    return s.per_example ? s.per_example * example : shape[s.offsets + example];
}

__device__ __forceinline__ int row_count(Space s, const int* shape) {
    return element_offset(s, shape, shape[0]) * dim_count(s, shape);
}

// The example that holds element `at`, by binary search over the offsets.
__device__ __forceinline__ int example_of(Space s, const int* shape, int at) {
    if (s.per_example) return at / s.per_example;
    int lo = 0, hi = shape[0];
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (shape[s.offsets + mid] <= at) lo = mid; else hi = mid;
    }
    return lo;
}

// Half a unit of tf32 in the bits of an f32 number. Tensor cores drop the last 13 bits; adding half a unit first turns
// that into rounding.
#define HALF_TF32_UNIT 0x1000u

// Rounds to tf32, for a tensor core that truncates. NaN stays NaN: the sum would turn some
// NaNs into other numbers.
__device__ __forceinline__ u32 tf32(float x) { return x != x ? 0x7fc00000u : __float_as_uint(x) + HALF_TF32_UNIT; }

// The value a tensor core sees.
__device__ __forceinline__ float truncate_tf32(u32 x) { return __uint_as_float(x & 0xffffe000u); }

// Two numbers rounded to bf16, `low` in the lower half.
__device__ __forceinline__ u32 bf16x2(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// Two numbers rounded to f16, `low` in the lower half.
__device__ __forceinline__ u32 pack_f16x2(float low, float high) {
    u32 x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

// Fragments of mma.m16n8k8. Lane l has g = l / 4 and t = l % 4. A (16 by 8) holds (g, t), (g + 8, t), (g, t + 4), (g +
// 8, t + 4). B (8 by 8) holds (t, g), (t + 4, g). C (16 by 8) holds (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
struct FragA {
#if PRECISION == 0
    u32 hi[4], lo[4];
    __device__ __forceinline__ void set(float a, float b, float c, float d) {
        float v[4] = {a, b, c, d};
#pragma unroll
        for (int i = 0; i < 4; i++) { hi[i] = tf32(v[i]); lo[i] = tf32(v[i] - truncate_tf32(hi[i])); }
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
        lo[0] = tf32(a - truncate_tf32(hi[0])); lo[1] = tf32(b - truncate_tf32(hi[1]));
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

// C += A B. In f32 the three largest of the four cross products of the split operands are added.
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

// Calls `apply(j, e)` for all accumulators of a lane over N columns: tile j of eight columns, element e of four.
template <int N, class F> __device__ __forceinline__ void for_each_element(F apply) {
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) apply(j, e);
}

// A 32-bit shared-memory address: one register, and no conversion at every use.
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Loads four 8 by 4 blocks of 32-bit numbers from shared memory. Lane l receives number l % 4 of row l / 4 of each
// block and supplies the address of row l % 8 of block l / 8. For 16-bit numbers the blocks are 8 by 8, and a lane
// receives two neighbours.
__device__ __forceinline__ void ldmatrix_x4(u32* r, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}

__device__ __forceinline__ void ldmatrix_x4(u32* r, const void* row) { ldmatrix_x4(r, shared_address(row)); }

// The same with every 8 by 8 block of 16-bit numbers transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(u32* r, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32* r, const void* row) { ldmatrix_x4_trans(r, shared_address(row)); }

// The same as f32 numbers.
__device__ __forceinline__ void ldmatrix_x4_f32(float* v, u32 row) {
    u32 r[4];
    ldmatrix_x4(r, row);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __uint_as_float(r[i]);
}

__device__ __forceinline__ void ldmatrix_x4_f32(float* v, const float* row) { ldmatrix_x4_f32(v, shared_address(row)); }

// Starts copying 16 or 4 bytes from global to shared memory; zeros if not `valid` (`from` must be an address all the
// same).
__device__ __forceinline__ void cp_async_16(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
}

__device__ __forceinline__ void cp_async_16(float* to, const float* from, bool valid) { cp_async_16(shared_address(to), from, valid); }

__device__ __forceinline__ void cp_async_4(float* to, const float* from, bool valid) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(valid ? 4 : 0));
}

// Ends a group of copies.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
// Waits until at most LEFT groups of copies are pending; the compiler moves no read above it.
template <int LEFT> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Starts copying a tile from global to shared memory: rows row0.., columns col0.. of a row-major matrix of leading
// dimension `ld`, R by C, with rows STRIDE apart. Elements outside `rows` by `cols` become zero. `vec` requires row
// starts and lengths that are multiples of four numbers.
template <int R, int C, int STRIDE, int THREADS>
__device__ __forceinline__ void load_tile(float* tile, const float* matrix, int ld, int row0, int rows, int col0, int cols, bool vec) {
    if (vec) {
#pragma unroll
        for (int i = threadIdx.x; i < R * (C / 4); i += THREADS) {
            int r = i / (C / 4), c = (i % (C / 4)) * 4;
            bool inside = row0 + r < rows && col0 + c < cols;
            cp_async_16(tile + r * STRIDE + c, inside ? matrix + (size_t)(row0 + r) * ld + col0 + c : matrix, inside);
        }
    } else {
        for (int i = threadIdx.x; i < R * C; i += THREADS) {
            int r = i / C, c = i % C;
            bool inside = row0 + r < rows && col0 + c < cols;
            cp_async_4(tile + r * STRIDE + c, inside ? matrix + (size_t)(row0 + r) * ld + col0 + c : matrix, inside);
        }
    }
}


__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 operator-(float4 a, float b) { return make_float4(a.x - b, a.y - b, a.z - b, a.w - b); }
__device__ __forceinline__ float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ __forceinline__ float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
// Sum of the four numbers.
__device__ __forceinline__ float horizontal_sum(float4 a) { return (a.x + a.y) + (a.z + a.w); }

// Sum over groups of LANES neighbouring lanes; every lane receives it.
template <int LANES> __device__ __forceinline__ float lane_sum(float x) {
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ __forceinline__ float warp_sum(float x) { return lane_sum<32>(x); }

// max(a, b) that propagates NaN.
__device__ __forceinline__ float max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
