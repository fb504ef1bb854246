// Matrix products of compute capability 9, tf32: a warpgroup of four warps multiplies 64 rows by up to 128 columns straight from shared memory.
//
// Both operands lie in tiles whose rows are 32 numbers along the sum. A row is 128 bytes: eight chunks of sixteen, chunk c of row r lying at c ^ (r % 8), which is the order the instruction expects
// and keeps every access free of bank conflicts. Eight rows are 1024 bytes, so tiles start at multiples of that.

// Where four numbers of a tile's row lie.
__device__ __forceinline__ int chunk_at(int row, int chunk) { return row * 32 + ((chunk ^ (row & 7)) * 4); }

// What the instruction needs to know of a tile: its address, 1024 bytes from eight rows to the next eight, chunks permuted over 128 bytes.
__device__ __forceinline__ u64 tile_descriptor(u32 tile) { return (tile >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
__device__ __forceinline__ u64 tile_descriptor(const float* tile) { return tile_descriptor(shared_at(tile)); }

#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_16 NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_40 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES_64 NAMES_40 ",%40,%41,%42,%43,%44,%45,%46,%47" \
                          ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_128 NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87" \
                           ",%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
                           ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define MULTIPLY(N, NAMES, A, B) \
    "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" N "k8.f32.tf32.tf32 {" NAMES "}, " A ", " B ", p, 1, 1;}"

// d += A Bᵀ over eight columns: 64 rows of a tile by N rows of another. Sums lie as those of `mma`: 16 rows a warp.
template <int N>
__device__ __forceinline__ void warpgroup_multiply(float* d, u64 a, u64 b) {
    if constexpr (N == 16) asm volatile(MULTIPLY("16", NAMES_8, "%8", "%9") : SUMS_4(0), SUMS_4(4) : "l"(a), "l"(b));
    else if constexpr (N == 32) asm volatile(MULTIPLY("32", NAMES_16, "%16", "%17") : SUMS_16(0) : "l"(a), "l"(b));
    else if constexpr (N == 64) asm volatile(MULTIPLY("64", NAMES_32, "%32", "%33") : SUMS_16(0), SUMS_16(16) : "l"(a), "l"(b));
    else if constexpr (N == 256)
        asm volatile(MULTIPLY("256", NAMES_128, "%128", "%129")
                     : SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48), SUMS_16(64), SUMS_16(80), SUMS_16(96), SUMS_16(112) : "l"(a), "l"(b));
    else {
        asm volatile(MULTIPLY("128", NAMES_64, "%64", "%65")
                     : SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48) : "l"(a), "l"(b));
        // Wider tiles take several instructions.
        if constexpr (N > 128) warpgroup_multiply<N - 128>(d + 64, a, b + 128 * 32 * 4 / 16);
    }
}

// As above with 64 by 8 numbers from registers on the left, 16 rows a warp: lane 4g + t has (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4).
template <int N>
__device__ __forceinline__ void warpgroup_multiply(float* d, const u32* a, u64 b) {
#define LEFT "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
    if constexpr (N == 16) asm volatile(MULTIPLY("16", NAMES_8, "{%8,%9,%10,%11}", "%12") : SUMS_4(0), SUMS_4(4) : LEFT);
    else if constexpr (N == 32) asm volatile(MULTIPLY("32", NAMES_16, "{%16,%17,%18,%19}", "%20") : SUMS_16(0) : LEFT);
    else if constexpr (N == 64) asm volatile(MULTIPLY("64", NAMES_32, "{%32,%33,%34,%35}", "%36") : SUMS_16(0), SUMS_16(16) : LEFT);
    else if constexpr (N == 80)
        asm volatile(MULTIPLY("80", NAMES_40, "{%40,%41,%42,%43}", "%44") : SUMS_16(0), SUMS_16(16), SUMS_4(32), SUMS_4(36) : LEFT);
    else asm volatile(MULTIPLY("128", NAMES_64, "{%64,%65,%66,%67}", "%68") : SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48) : LEFT);
#undef LEFT
}

// The sum over the 32 columns of a pair of tiles.
template <int N>
__device__ __forceinline__ void multiply_tiles(float* d, const float* a, const float* b) {
    u64 da = tile_descriptor(a), db = tile_descriptor(b);
#pragma unroll
    for (int k = 0; k < 4; k++) warpgroup_multiply<N>(d, da + 2 * k, db + 2 * k);
}

__device__ __forceinline__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// All but what was committed last is done.
__device__ __forceinline__ void multiply_wait_but_one() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

// Barriers in shared memory: `count` arrivals, and bytes that copies have announced, complete a phase; phases alternate between 0 and 1.
__device__ __forceinline__ void barrier_init(u64* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(barrier)) : "memory");
}

// Without a branch, so that products may be under way across it.
__device__ __forceinline__ void barrier_arrive_if(u64* barrier, bool arrives) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(shared_at(barrier)), "r"((u32)arrives) : "memory");
}

__device__ __forceinline__ void barrier_expect(u64* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(u64* barrier, int phase) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(shared_at(barrier)), "r"(phase) : "memory");
}

// Lets the copy engine fetch a tile from column x and row y on; its bytes count for the barrier.
__device__ __forceinline__ void fetch_tile(float* tile, const void* map, int x, int y, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_at(tile)),
                 "l"(map), "r"(shared_at(barrier)), "r"(x), "r"(y)
                 : "memory");
}

// Gives registers of a warpgroup back, or takes some: all its warps, in the branch that is theirs.
template <int COUNT> __device__ __forceinline__ void registers_give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> __device__ __forceinline__ void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Makes what this thread wrote to shared memory visible to the matrix units; a barrier of all writers has to follow.
__device__ __forceinline__ void tiles_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Dynamic shared memory from the next multiple of 1024 bytes on.
__device__ __forceinline__ float* tiles_begin() {
    extern __shared__ __align__(16) float shared[];
    u32 at = (u32)__cvta_generic_to_shared(shared);
    return shared + ((1024 - at % 1024) % 1024) / 4;
}
