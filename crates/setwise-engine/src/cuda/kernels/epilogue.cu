// Epilogue of sm_90 products: bias, activation, residuals, gate and LayerNorm.

// Volatile, so that reads issued together stay together.
__device__ __forceinline__ float4 read_chunk(const float* from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
    return x;
}

__device__ __forceinline__ void write_chunk(float* to, float4 x) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// The epilogue of LinearTask for COUNT rows of a warp, whose accumulators lie in shared memory with rows BN + 8 apart.
// LANES lanes own a row, four numbers each; UNROLL rows are in flight. All branches are uniform, so the reads of these
// rows overlap. Missing rows and columns read existing ones and are not written. y (and normalised, inv_std with a
// gain) is written.
template <int BN, int COUNT>
__device__ __forceinline__ void epilogue_rows(const LinearTask& task, const float* sums, int m0, int rows, int n0) {
    constexpr int LANES = BN < 128 ? BN / 4 : 32, CHUNKS = (BN + 127) / 128, ROWS = 32 / LANES, UNROLL = COUNT / ROWS < 4 ? COUNT / ROWS : 4;
    int lane = threadIdx.x % LANES, row = threadIdx.x % 32 / LANES, width = task.n;
    // A lane's columns, and whether they exist.
    int column[CHUNKS];
    bool inside[CHUNKS];
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int n = n0 + (lane + k * LANES) * 4;
        inside[k] = n < width;
        column[k] = inside[k] ? n : n0;
    }
    for (int r0 = 0; r0 < COUNT && m0 + r0 < rows; r0 += ROWS * UNROLL) {
        float4 v[UNROLL][CHUNKS];
        int at[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            int r = r0 + i * ROWS + row;
            at[i] = min(m0 + r, rows - 1);
#pragma unroll
            for (int k = 0; k < CHUNKS; k++) v[i][k] = *(const float4*)(sums + r * (BN + 8) + (lane + k * LANES) * 4);
        }
        // Combines v with one vector for all rows, or with one row for each row.
        auto apply_vector = [&](const float* from, auto apply) {
#pragma unroll
            for (int k = 0; k < CHUNKS; k++) {
                float4 x = read_chunk(from + column[k]);
#pragma unroll
                for (int i = 0; i < UNROLL; i++) v[i][k] = apply(v[i][k], x);
            }
        };
        auto apply_matrix = [&](const float* from, int ld, auto apply) {
            float4 x[UNROLL][CHUNKS];
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) x[i][k] = read_chunk(from + (size_t)at[i] * ld + column[k]);
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = apply(v[i][k], x[i][k]);
        };
        auto apply_each = [&](auto apply) {
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = make_float4(apply(v[i][k].x), apply(v[i][k].y), apply(v[i][k].z), apply(v[i][k].w));
        };
        auto write = [&](float* to, int ld) {
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++)
                    if (m0 + r0 + i * ROWS + row < rows && inside[k]) write_chunk(to + (size_t)at[i] * ld + column[k], v[i][k]);
        };
        auto plus = [](float4 a, float4 b) { return a + b; };
        auto times = [](float4 a, float4 b) { return a * b; };
        auto gated = [](float4 x, float4 g) {
            return make_float4(g.x > 0.0f ? x.x : 0.0f, g.y > 0.0f ? x.y : 0.0f, g.z > 0.0f ? x.z : 0.0f, g.w > 0.0f ? x.w : 0.0f);
        };
        if (task.bias) apply_vector(task.bias, plus);
        if (task.activation == 1) apply_each([](float x) { return x <= 0.0f ? 0.0f : x; });
        else if (task.activation) apply_each([](float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); });
        if (BN <= 128 && task.residual2 && task.accumulate) {
            // All three reads overlap.
            const float* from[3] = {task.residual, task.residual2, task.y};
            int ld[3] = {task.ldr, task.ldr2, task.ldy};
            float4 x[3][UNROLL][CHUNKS];
#pragma unroll
            for (int s = 0; s < 3; s++)
#pragma unroll
                for (int i = 0; i < UNROLL; i++)
#pragma unroll
                    for (int k = 0; k < CHUNKS; k++) x[s][i][k] = read_chunk(from[s] + (size_t)at[i] * ld[s] + column[k]);
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = v[i][k] + x[0][i][k] + (x[1][i][k] + x[2][i][k]);
        } else {
            if (task.residual) apply_matrix(task.residual, task.ldr, plus);
            if (task.residual2) apply_matrix(task.residual2, task.ldr2, plus);
            if (task.accumulate) apply_matrix(task.y, task.ldy, plus);
        }
        if (task.gate) apply_matrix(task.gate, task.ldg, gated);
        if (task.gain) {
            float mean[UNROLL], inv_std[UNROLL];
#pragma unroll
            for (int i = 0; i < UNROLL; i++) {
                float sum = 0.0f;
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) sum += inside[k] ? horizontal_sum(v[i][k]) : 0.0f;
                mean[i] = lane_sum<LANES>(sum) / width;
            }
#pragma unroll
            for (int i = 0; i < UNROLL; i++) {
                float square = 0.0f;
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) {
                    v[i][k] = v[i][k] - mean[i];
                    square += inside[k] ? horizontal_sum(v[i][k] * v[i][k]) : 0.0f;
                }
                inv_std[i] = rsqrtf(lane_sum<LANES>(square) / width + 1e-5f);
            }
#pragma unroll
            for (int i = 0; i < UNROLL; i++) {
#pragma unroll
                for (int k = 0; k < CHUNKS; k++) v[i][k] = v[i][k] * inv_std[i];
                if (lane == 0 && m0 + r0 + i * ROWS + row < rows) task.inv_std[at[i]] = inv_std[i];
            }
            write(task.normalised, width);
            apply_vector(task.gain, times);
            apply_vector(task.shift, plus);
        }
        write(task.y, task.ldy);
    }
}
