// sm_90 building blocks: wgmma products in tf32, mbarriers, TMA copies. A warpgroup of four warps multiplies 64 rows by
// up to 256 columns, with operands in shared memory.
//
// Operand tiles are K-major: a row holds 32 numbers along the sum, 128 bytes in eight chunks of sixteen. Chunk c of row
// r lies at c ^ (r % 8), the 128-byte swizzle of wgmma and TMA, so no access has bank conflicts. Eight rows are 1024
// bytes; tiles are aligned to that.

// Index of chunk `chunk` of row `row` in a swizzled tile.
__device__ __forceinline__ int swizzled_chunk(int row, int chunk) { return row * 32 + ((chunk ^ (row & 7)) * 4); }

// Shared-memory descriptor of a tile, in units of 16 bytes: address (bits 0 to 13), 64 units between groups of eight
// rows (from bit 32). The two highest bits are 1 for the 128-byte swizzle. The offset from bit 16 on has no effect with
// this swizzle.
__device__ __forceinline__ u64 wgmma_descriptor(u32 tile) { return (tile >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
__device__ __forceinline__ u64 wgmma_descriptor(const float* tile) { return wgmma_descriptor(shared_address(tile)); }

#define ACC_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC_16(i) ACC_4(i), ACC_4(i + 4), ACC_4(i + 8), ACC_4(i + 12)
#define REGS_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define REGS_16 REGS_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define REGS_32 REGS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGS_40 REGS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define REGS_64 REGS_40 ",%40,%41,%42,%43,%44,%45,%46,%47" \
                          ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGS_128 REGS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87" \
                           ",%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
                           ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA(N, REGS, A, B) \
    "{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" N "k8.f32.tf32.tf32 {" REGS "}, " A ", " B ", p, 1, 1;}"

// d += A Bᵀ over eight columns of K: 64 rows of tile A by N rows of tile B. Accumulators lie as those of `mma`, 16 rows
// a warp.
template <int N>
__device__ __forceinline__ void wgmma(float* d, u64 a, u64 b) {
    if constexpr (N == 16) asm volatile(WGMMA("16", REGS_8, "%8", "%9") : ACC_4(0), ACC_4(4) : "l"(a), "l"(b));
    else if constexpr (N == 32) asm volatile(WGMMA("32", REGS_16, "%16", "%17") : ACC_16(0) : "l"(a), "l"(b));
    else if constexpr (N == 64) asm volatile(WGMMA("64", REGS_32, "%32", "%33") : ACC_16(0), ACC_16(16) : "l"(a), "l"(b));
    else if constexpr (N == 256)
        asm volatile(WGMMA("256", REGS_128, "%128", "%129")
                     : ACC_16(0), ACC_16(16), ACC_16(32), ACC_16(48), ACC_16(64), ACC_16(80), ACC_16(96), ACC_16(112) : "l"(a), "l"(b));
    else {
        asm volatile(WGMMA("128", REGS_64, "%64", "%65")
                     : ACC_16(0), ACC_16(16), ACC_16(32), ACC_16(48) : "l"(a), "l"(b));
        // Wider tiles take several instructions.
        if constexpr (N > 128) wgmma<N - 128>(d + 64, a, b + 128 * 32 * 4 / 16);
    }
}

// The same with A in registers, 16 rows a warp: lane 4g + t holds (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4).
template <int N>
__device__ __forceinline__ void wgmma(float* d, const u32* a, u64 b) {
#define A_REGISTERS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
    if constexpr (N == 16) asm volatile(WGMMA("16", REGS_8, "{%8,%9,%10,%11}", "%12") : ACC_4(0), ACC_4(4) : A_REGISTERS);
    else if constexpr (N == 32) asm volatile(WGMMA("32", REGS_16, "{%16,%17,%18,%19}", "%20") : ACC_16(0) : A_REGISTERS);
    else if constexpr (N == 64) asm volatile(WGMMA("64", REGS_32, "{%32,%33,%34,%35}", "%36") : ACC_16(0), ACC_16(16) : A_REGISTERS);
    else if constexpr (N == 80)
        asm volatile(WGMMA("80", REGS_40, "{%40,%41,%42,%43}", "%44") : ACC_16(0), ACC_16(16), ACC_4(32), ACC_4(36) : A_REGISTERS);
    else asm volatile(WGMMA("128", REGS_64, "{%64,%65,%66,%67}", "%68") : ACC_16(0), ACC_16(16), ACC_16(32), ACC_16(48) : A_REGISTERS);
#undef A_REGISTERS
}

// d += A Bᵀ over the 32 columns of a pair of tiles.
template <int N>
__device__ __forceinline__ void wgmma_tiles(float* d, const float* a, const float* b) {
    u64 da = wgmma_descriptor(a), db = wgmma_descriptor(b);
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma<N>(d, da + 2 * k, db + 2 * k);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// All groups but the last committed one are complete.
__device__ __forceinline__ void wgmma_wait_1() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

// mbarriers. A phase completes after `count` arrivals and all announced bytes; phases alternate between 0 and 1.
__device__ __forceinline__ void mbarrier_init(u64* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Predicated instead of branched, so that wgmma may be in flight across it.
__device__ __forceinline__ void mbarrier_arrive_if(u64* barrier, bool arrives) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(shared_address(barrier)), "r"((u32)arrives) : "memory");
}

__device__ __forceinline__ void mbarrier_expect_bytes(u64* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(u64* barrier, int phase) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

// Issues a TMA load of the tile at column x, row y; its bytes complete on the mbarrier.
__device__ __forceinline__ void tma_load_2d(float* tile, const void* map, int x, int y, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(tile)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
                 : "memory");
}

// Lowers or raises the register budget of a warpgroup; all its warps execute it in their own branch.
template <int COUNT> __device__ __forceinline__ void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> __device__ __forceinline__ void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Makes this thread's shared-memory writes visible to wgmma and TMA; a barrier over all writers follows.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Dynamic shared memory, aligned to 1024 bytes.
__device__ __forceinline__ float* aligned_shared() {
    extern __shared__ __align__(16) float shared[];
    u32 at = (u32)__cvta_generic_to_shared(shared);
    return shared + ((1024 - at % 1024) % 1024) / 4;
}
