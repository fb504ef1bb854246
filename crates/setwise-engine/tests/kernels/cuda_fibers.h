// CUDA threads on a CPU, for tests of kernels without a GPU. Every thread of a block is a fiber; warp and block
// collectives wait until all their threads arrive. Inline assembly is replaced by equivalent scalar code.
//
// Between barriers threads run one after another, in an order given to `run_blocks`: all interleaved, or each warp as
// far as it gets. A kernel whose result depends on the order has a race.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#define PRECISION 1
#define __device__
#define __host__
#define __global__
#define __launch_bounds__(...)
#define __forceinline__ inline
// Dynamic shared memory is `shared`, below.
#define __shared__ static
#define __align__(bytes)
#define __builtin_assume(fact)

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }

template <class To, class From> To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline uint32_t __float_as_uint(float x) { return bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return bit_cast<float>(x); }
inline bool __isGlobal(const void*) { return true; }
inline float4 __ldcg(const float4* from) { return *from; }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
#define __log2f(x) std::log2(x)
#define __expf(x) std::exp(x)
template <class T> constexpr T max(T a, T b) { return a > b ? a : b; }
template <class T> constexpr T min(T a, T b) { return a < b ? a : b; }

// A failed test ends the program.
[[noreturn]] inline void fail(const char* what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

// --- threads

struct Index { int x, y, z; };
inline Index threadIdx, blockIdx, blockDim, gridDim;

constexpr int LANES = 32, MAX_THREADS = 320, MAX_BLOCKS = 2, MAX_FIBERS = MAX_BLOCKS * MAX_THREADS, SHARED_BYTES = 228 << 10;

struct Barrier {
    int arrived = 0, expected = 0;
    unsigned generation = 0;
};

struct Block {
    std::vector<float> memory = std::vector<float>(SHARED_BYTES / 4);
    Barrier barrier;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 18);
    bool done = false;
};

inline std::vector<Fiber> fibers(MAX_FIBERS);
inline ucontext_t scheduler;
inline const std::function<void()>* current_kernel;
// Blocks of the running cluster, the current fiber and its block, and dynamic shared memory under the name kernels use.
inline Block blocks[MAX_BLOCKS];
inline Barrier warps[MAX_FIBERS / LANES], cluster;
inline int current_fiber, block;
inline float* shared;

inline void pause() { swapcontext(&fibers[current_fiber].context, &scheduler); }

inline void release_if_complete(Barrier& barrier) {
    if (barrier.arrived < barrier.expected) return;
    barrier.arrived = 0;
    barrier.generation++;
}

inline void wait_at(Barrier& barrier) {
    unsigned generation = barrier.generation;
    barrier.arrived++;
    release_if_complete(barrier);
    while (barrier.generation == generation) pause();
}

inline void sync_warp() { wait_at(warps[current_fiber / LANES]); }
inline void __syncwarp() { sync_warp(); }
inline void __syncthreads() { wait_at(blocks[block].barrier); }
inline void cluster_sync() { wait_at(cluster); }

// Shared memory of a finished block must not be read.
inline void poison(Block& block) { std::fill(block.memory.begin(), block.memory.end(), NAN); }

inline void fiber_main() {
    (*current_kernel)();
    fibers[current_fiber].done = true;
    Barrier& own_barrier = blocks[block].barrier;
    if (--own_barrier.expected == 0) poison(blocks[block]);
    cluster.expected--;
    release_if_complete(own_barrier);
    release_if_complete(cluster);
    pause();
}

// Runs a block, or the `cluster_blocks` blocks of a cluster along the grid's first dimension. The seed determines the
// order of threads; an even seed runs warp after warp. Shared memory starts as NaN.
inline void run_blocks(const std::function<void()>& kernel, int threads, Index index, unsigned seed, int cluster_blocks = 1) {
    int all = threads * cluster_blocks;
    current_kernel = &kernel, blockDim = {threads, 1, 1}, cluster = {0, all};
    std::fill(std::begin(warps), std::end(warps), Barrier{0, LANES});
    for (auto& block : blocks) poison(block), block.barrier = {0, threads};
    for (int i = 0; i < all; i++) {
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack.ss_sp = fibers[i].stack.data();
        fibers[i].context.uc_stack.ss_size = fibers[i].stack.size();
        makecontext(&fibers[i].context, fiber_main, 0);
        fibers[i].done = false;
    }
    auto run = [&](int i) {
        if (fibers[i].done) return;
        current_fiber = i, block = i / threads, shared = blocks[block].memory.data();
        threadIdx = {i % threads, 0, 0}, blockIdx = {index.x + block, index.y, index.z};
        swapcontext(&scheduler, &fibers[i].context);
    };
    std::vector<int> order(all), lanes(LANES), of_warps(all / LANES);
    for (auto list : {&order, &lanes, &of_warps}) std::iota(list->begin(), list->end(), 0);
    std::mt19937 rng(seed);
    for (int rounds = 0; cluster.expected > 0; rounds++) {
        if (rounds > 1 << 20) fail("deadlock: threads wait for each other");
        if (seed % 2) {
            std::shuffle(order.begin(), order.end(), rng);
            for (int i : order) run(i);
            continue;
        }
        // A warp runs as far as it can before the next one.
        std::shuffle(of_warps.begin(), of_warps.end(), rng);
        for (int warp : of_warps)
            for (unsigned generation = ~0u; generation != warps[warp].generation;) {
                generation = warps[warp].generation;
                std::shuffle(lanes.begin(), lanes.end(), rng);
                for (int lane : lanes) run(warp * LANES + lane);
            }
    }
}

// --- warp collectives

// Each lane publishes some bits and sees those of all lanes.
struct Table { uint32_t of[LANES][8]; };

template <class F> void exchange(const uint32_t* mine, int count, F use) {
    static Table tables[MAX_FIBERS / LANES];
    Table& table = tables[current_fiber / LANES];
    std::copy(mine, mine + count, table.of[threadIdx.x % LANES]);
    sync_warp();
    use(table);
    sync_warp();
}

inline float __shfl_xor_sync(uint32_t, float x, int mask) {
    uint32_t mine = __float_as_uint(x);
    exchange(&mine, 1, [&](const Table& t) { x = __uint_as_float(t.of[threadIdx.x % LANES ^ mask][0]); });
    return x;
}

inline uint32_t warp_max(uint32_t x) {
    uint32_t max_value = 0;
    exchange(&x, 1, [&](const Table& t) { for (auto& lane : t.of) max_value = max(max_value, lane[0]); });
    return max_value;
}

inline size_t __cvta_generic_to_shared(const void* p) { return (const char*)p - (const char*)shared; }

inline char* row_at(uint32_t at) {
    if (at % 16 != 0 || at + 16 > SHARED_BYTES) fail("a row in shared memory is not aligned to 16 bytes or out of range");
    return (char*)shared + at;
}

inline void ldmatrix_x4(uint32_t* r, uint32_t row) {
    int g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;
    exchange(&row, 1, [&](const Table& table) {
        for (int i = 0; i < 4; i++) memcpy(&r[i], row_at(table.of[8 * i + g][0]) + 4 * t, 4);
    });
}

inline void ldmatrix_x4_trans(uint32_t* r, uint32_t row) {
    int g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;
    exchange(&row, 1, [&](const Table& table) {
        for (int i = 0; i < 4; i++)
            for (int h = 0; h < 2; h++) memcpy((char*)&r[i] + 2 * h, row_at(table.of[8 * i + 2 * t + h][0]) + 2 * g, 2);
    });
}

inline void stmatrix_x4(uint32_t row, const uint32_t* r) {
    int g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;
    exchange(&row, 1, [&](const Table& table) {
        for (int i = 0; i < 4; i++) memcpy(row_at(table.of[8 * i + g][0]) + 4 * t, &r[i], 4);
    });
}

// Rows g and g + 8, columns 2t and 2t + 1 of a 16 by 8 product over K terms. `left` and `right` read a number from all
// lanes' registers.
template <int K, class Left, class Right> void add_product(float* c, const Table& table, Left left, Right right) {
    int g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;
    for (int e = 0; e < 4; e++) {
        float sum = 0.0f;
        for (int k = 0; k < K; k++) sum += left(table, g + e / 2 * 8, k) * right(table, k, 2 * t + e % 2);
        c[e] += sum;
    }
}

// Tensor cores read the first 19 bits.
inline float truncate_tf32_bits(uint32_t x) { return __uint_as_float(x & 0xffffe000u); }

inline void mma_tf32(float* c, const uint32_t* a, const uint32_t* b) {
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    auto left = [](const Table& t, int r, int k) { return truncate_tf32_bits(t.of[r % 8 * 4 + k % 4][r / 8 + k / 4 * 2]); };
    auto right = [](const Table& t, int k, int n) { return truncate_tf32_bits(t.of[n * 4 + k % 4][4 + k / 4]); };
    exchange(mine, 6, [&](const Table& t) { add_product<8>(c, t, left, right); });
}

template <class A, class B> void mma(float* c, const A& a, const B& b) { mma_tf32(c, a.v, b.v); }

// The nearest f16 number, and the value of an f16 number.
inline uint32_t to_f16(float x) {
    uint32_t sign = __float_as_uint(x) >> 16 & 0x8000u;
    float size = std::fabs(x);
    if (!(size == size)) return 0x7fffu;
    if (size >= 65520.0f) return sign | 0x7c00u;
    int exponent = size > 0.0f ? std::max(std::ilogb(size), -14) : -14;
    // In units of the last place; ties go to even.
    float units = std::nearbyint(std::ldexp(size, 10 - exponent));
    return sign | ((uint32_t)(exponent + 14) * 1024u + (uint32_t)units);
}

inline std::vector<float> all_f16() {
    std::vector<float> numbers(1 << 16);
    for (int half = 0; half < 1 << 16; half++) {
        int exponent = half >> 10 & 31, bits = half & 1023;
        float size = exponent == 31 ? (bits ? NAN : INFINITY) : std::ldexp((float)(exponent ? bits + 1024 : bits), std::max(exponent, 1) - 25);
        numbers[half] = half & 0x8000 ? -size : size;
    }
    return numbers;
}

inline float f16_value(uint32_t half) {
    static const std::vector<float> numbers = all_f16();
    return numbers[half];
}

inline uint32_t pack_f16x2(float low, float high) { return to_f16(low) | to_f16(high) << 16; }
inline float unpack_f16(uint32_t both, int which) { return f16_value(which ? both >> 16 : both & 0xffffu); }

inline void mma_f16(float* c, const uint32_t* a, const uint32_t* b) {
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    auto left = [](const Table& t, int r, int k) { return unpack_f16(t.of[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2], k % 2); };
    auto right = [](const Table& t, int k, int n) { return unpack_f16(t.of[n * 4 + k % 8 / 2][4 + k / 8], k % 2); };
    exchange(mine, 6, [&](const Table& t) { add_product<16>(c, t, left, right); });
}

inline void mma_f16(float* c, const uint32_t* a, uint32_t b) {
    uint32_t mine[3] = {a[0], a[1], b};
    auto left = [](const Table& t, int r, int k) { return unpack_f16(t.of[r % 8 * 4 + k / 2][r / 8], k % 2); };
    auto right = [](const Table& t, int k, int n) { return unpack_f16(t.of[n * 4 + k / 2][2], k % 2); };
    exchange(mine, 3, [&](const Table& t) { add_product<8>(c, t, left, right); });
}

// --- single lanes

inline float4 read_chunk(const float* from) { return *(const float4*)from; }
inline void write_chunk(float* to, float4 x) { *(float4*)to = x; }
inline float2 dsmem_load(const float2* mine, int rank) { return *(const float2*)((const char*)blocks[rank].memory.data() + __cvta_generic_to_shared(mine)); }

inline float exp2_approx(float x) { return std::exp2(x); }
inline float max_nan(float a, float b) { return a != a || b != b ? NAN : std::max(a, b); }
inline void launch_dependents() {}
inline void grid_dependency_wait() {}
inline void prefetch_line(const void*) {}
inline void prefetch_tensor_maps(const void*) {}

// Copies complete at once.
inline void cp_async_16(uint32_t to, const void* from, bool valid) {
    if (valid) memcpy(row_at(to), from, 16);
    else memset(row_at(to), 0, 16);
}
inline void cp_async_4(float* to, const float* from, bool valid) { *to = valid ? *from : 0.0f; }
inline void cp_async_commit() {}
template <int LEFT> void cp_async_wait() {}

// --- helpers of tests

inline std::mt19937_64 generator(7);
inline float random_normal() { return std::normal_distribution<float>()(generator); }

using Rows = std::vector<float>;
inline Rows random_rows(size_t count) {
    Rows x(count);
    for (auto& v : x) v = random_normal();
    return x;
}

// The largest error, and the largest expected number.
struct Compared {
    double max_error = 0.0, max_expected = 0.0;
    void operator()(double found, double expected) {
        max_error = std::isnan(found) ? INFINITY : std::max(max_error, std::fabs(found - expected));
        max_expected = std::max(max_expected, std::fabs(expected));
    }
    void check(const char* what, double allowed) const {
        if (!(max_error <= allowed * max_expected)) {
            fprintf(stderr, "%s: max_error by %g where the max_expected is %g\n", what, max_error, max_expected);
            exit(1);
        }
    }
};
