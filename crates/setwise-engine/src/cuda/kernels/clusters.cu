// Thread block clusters: blocks that run at the same time and read each other's shared memory (distributed shared
// memory).

// Blocks of a cluster along the grid's second dimension.
__device__ __forceinline__ int cluster_size_y() {
    int n;
    asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(n));
    return n;
}

// Rank of this block in its cluster.
__device__ __forceinline__ int cluster_rank() {
    int n;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
    return n;
}

// Barrier over all threads of the cluster that have not exited. Shared-memory writes before it are visible after it.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Reads block `rank`'s shared memory at the offset of `mine`.
__device__ __forceinline__ float4 dsmem_load(const float4* mine, int rank) {
    float4 x;
    asm volatile("{.reg .u32 at; mapa.shared::cluster.u32 at, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];}"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(shared_address(mine)), "r"(rank) : "memory");
    return x;
}

__device__ __forceinline__ float2 dsmem_load(const float2* mine, int rank) {
    float2 x;
    asm volatile("{.reg .u32 at; mapa.shared::cluster.u32 at, %2, %3; ld.shared::cluster.v2.f32 {%0, %1}, [at];}" : "=f"(x.x), "=f"(x.y) : "r"(shared_address(mine)), "r"(rank) : "memory");
    return x;
}
