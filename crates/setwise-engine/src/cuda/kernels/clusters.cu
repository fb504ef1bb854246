// Clusters of blocks, which run at the same time and read each other's shared memory.

// Blocks of a cluster along the grid's second dimension.
__device__ __forceinline__ int cluster_blocks() {
    int n;
    asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(n));
    return n;
}

// Which of the cluster's blocks this is.
__device__ __forceinline__ int cluster_rank() {
    int n;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
    return n;
}

// Waits for all threads of the cluster that are still there; what they wrote to shared memory before can be read after.
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// What lies in another block of the cluster where `mine` lies here.
__device__ __forceinline__ float4 of_block(const float4* mine, int rank) {
    float4 x;
    asm volatile("{.reg .u32 at; mapa.shared::cluster.u32 at, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];}"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(shared_at(mine)), "r"(rank) : "memory");
    return x;
}

__device__ __forceinline__ float2 of_block(const float2* mine, int rank) {
    float2 x;
    asm volatile("{.reg .u32 at; mapa.shared::cluster.u32 at, %2, %3; ld.shared::cluster.v2.f32 {%0, %1}, [at];}" : "=f"(x.x), "=f"(x.y) : "r"(shared_at(mine)), "r"(rank) : "memory");
    return x;
}
