// Epilogue of sm_90 products: bias, activation, residuals, gate and LayerNorm.

// Padding of a row of accumulators in shared memory. Row strides are 8 or 24 modulo 32 words, so the float2 stores of
// fragments have no bank conflicts.
#define EPILOGUE_PADDING 8

// A sixteen-byte read. Volatile assembly keeps its order: the compiler cannot sink a read to its first use, so all
// reads of a group are in flight together.
__device__ __forceinline__ float4 read_chunk(const float* from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
    return x;
}

// A sixteen-byte write. Volatile as `read_chunk`, so it stays behind the reads above it, which may be of the same
// address. The clobber keeps plain reads of memory, such as those of accumulators, on their side of it.
__device__ __forceinline__ void write_chunk(float* to, float4 x) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// The epilogue of LinearTask for rows m0..m0 + COUNT of y and columns n0..n0 + BN, by one warp. v = act(accumulators +
// bias) + residual + residual2, plus y if `accumulate`, zero where gate ≤ 0. With gain, x̂ = (v − mean) / σ and y = x̂
// · gain + shift.
//
// Layout: `accumulators` is [COUNT, BN] in shared memory with row stride BN + EPILOGUE_PADDING; other matrices have
// `rows` rows with the strides of the task. LANES lanes own a row, CHUNKS float4 each, 128 columns apart. ROWS · UNROLL
// rows of the warp are in flight.
//
// Written: y, or y is added to if `accumulate`; with gain also normalised (x̂, row stride n) and inv_std (1/σ). A lane
// that writes an address of y is the one that read it. Missing rows and columns read existing ones, and the results are
// dropped. Branches around reads and shuffles are warp-uniform; only stores are predicated.
//
// Preconditions: n and all row strides are multiples of 4 and addresses of 16 bytes (`LinearProduct::vectorisable`).
// With gain, the tile holds full rows: n0 = 0 and n ≤ BN. `accumulators` is visible to the warp. residual2 implies
// residual (`linear_input_grads` fills them in order).
template <int BN, int COUNT>
__device__ __forceinline__ void epilogue_rows(const LinearTask& task, const float* accumulators, int m0, int rows, int n0) {
    constexpr int LANES = BN < 128 ? BN / 4 : 32, CHUNKS = (BN + 127) / 128, ROWS = 32 / LANES, UNROLL = COUNT / ROWS < 4 ? COUNT / ROWS : 4;
    int lane_in_row = threadIdx.x % LANES, row_in_group = threadIdx.x % 32 / LANES, columns = task.n;
    // A lane's columns, and whether they exist.
    int column[CHUNKS];
    bool inside[CHUNKS];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int n = n0 + (lane_in_row + chunk * LANES) * 4;
        inside[chunk] = n < columns;
        column[chunk] = inside[chunk] ? n : n0;
    }
    for (int r0 = 0; r0 < COUNT && m0 + r0 < rows; r0 += ROWS * UNROLL) {
        float4 v[UNROLL][CHUNKS];
        int source_row[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            int r = r0 + i * ROWS + row_in_group;
            source_row[i] = min(m0 + r, rows - 1);
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++)
                v[i][chunk] = *(const float4*)(accumulators + r * (BN + EPILOGUE_PADDING) + (lane_in_row + chunk * LANES) * 4);
        }
        // Combines v with one vector for all rows (bias, gain, shift), or with the same rows of a matrix.
        auto apply_vector = [&](const float* from, auto apply) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                float4 x = read_chunk(from + column[chunk]);
#pragma unroll
                for (int i = 0; i < UNROLL; i++) v[i][chunk] = apply(v[i][chunk], x);
            }
        };
        auto apply_matrix = [&](const float* from, int ld, auto apply) {
            float4 x[UNROLL][CHUNKS];
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++)
                    x[i][chunk] = read_chunk(from + (size_t)source_row[i] * ld + column[chunk]);
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++) v[i][chunk] = apply(v[i][chunk], x[i][chunk]);
        };
        auto apply_each = [&](auto apply) {
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++)
                    v[i][chunk] = make_float4(apply(v[i][chunk].x), apply(v[i][chunk].y), apply(v[i][chunk].z), apply(v[i][chunk].w));
        };
        auto write = [&](float* to, int ld) {
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++)
                    if (m0 + r0 + i * ROWS + row_in_group < rows && inside[chunk])
                        write_chunk(to + (size_t)source_row[i] * ld + column[chunk], v[i][chunk]);
        };
        auto plus = [](float4 a, float4 b) { return a + b; };
        auto times = [](float4 a, float4 b) { return a * b; };
        auto gated = [](float4 x, float4 g) {
            return make_float4(g.x > 0.0f ? x.x : 0.0f, g.y > 0.0f ? x.y : 0.0f, g.z > 0.0f ? x.z : 0.0f, g.w > 0.0f ? x.w : 0.0f);
        };
        if (task.bias) apply_vector(task.bias, plus);
        // NaN passes the ReLU. The sigmoid divides with an error of 2 ulp; `activate` rounds to nearest.
        if (task.activation == ACTIVATION_RELU) apply_each([](float x) { return x <= 0.0f ? 0.0f : x; });
        else if (task.activation != ACTIVATION_NONE) apply_each([](float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); });
        if (BN <= 128 && task.residual2 && task.accumulate) {
            // All three reads overlap. The sum has another order than below, so it rounds differently. With BN = 256
            // the three operands would take 96 registers.
            const float* from[3] = {task.residual, task.residual2, task.y};
            int ld[3] = {task.ldr, task.ldr2, task.ldy};
            float4 x[3][UNROLL][CHUNKS];
#pragma unroll
            for (int operand = 0; operand < 3; operand++)
#pragma unroll
                for (int i = 0; i < UNROLL; i++)
#pragma unroll
                    for (int chunk = 0; chunk < CHUNKS; chunk++)
                        x[operand][i][chunk] = read_chunk(from[operand] + (size_t)source_row[i] * ld[operand] + column[chunk]);
#pragma unroll
            for (int i = 0; i < UNROLL; i++)
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++)
                    v[i][chunk] = v[i][chunk] + x[0][i][chunk] + (x[1][i][chunk] + x[2][i][chunk]);
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
                for (int chunk = 0; chunk < CHUNKS; chunk++) sum += inside[chunk] ? horizontal_sum(v[i][chunk]) : 0.0f;
                mean[i] = lane_sum<LANES>(sum) / columns;
            }
#pragma unroll
            for (int i = 0; i < UNROLL; i++) {
                float square = 0.0f;
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++) {
                    v[i][chunk] = v[i][chunk] - mean[i];
                    square += inside[chunk] ? horizontal_sum(v[i][chunk] * v[i][chunk]) : 0.0f;
                }
                inv_std[i] = rsqrtf(lane_sum<LANES>(square) / columns + LAYER_NORM_EPSILON);
            }
#pragma unroll
            for (int i = 0; i < UNROLL; i++) {
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++) v[i][chunk] = v[i][chunk] * inv_std[i];
                if (lane_in_row == 0 && m0 + r0 + i * ROWS + row_in_group < rows) task.inv_std[source_row[i]] = inv_std[i];
            }
            write(task.normalised, columns);
            apply_vector(task.gain, times);
            apply_vector(task.shift, plus);
        }
        write(task.y, task.ldy);
    }
}
