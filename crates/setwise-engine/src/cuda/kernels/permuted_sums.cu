// Sums of a kernel k over pairs of rows, for permutations p of two samples:
//
//   first[p] = Σ_i z_ip Σ_{j≠i} k(x_i, x_j) z_jp        row_sums[i] = Σ_{j≠i} k(x_i, x_j)
//
// `points` is [rows, dim]. z_ip is bit p % 32 of `members`, [permutations / 32][rows]. A block owns SUM_ROWS rows i and
// SUM_PERMUTATIONS permutations, and walks through all rows j, SUM_COLUMNS at a time: it computes their kernel values
// in shared memory and multiplies them with z. A thread owns 4 rows by 4 permutations. Products are summed in f32 over
// SUM_FLUSH columns, then in f64. Block (x, y) writes `first` [x][permutations of y]; blocks with y = 0 write
// `row_sums`.
//
// Cost: 2 · rows² · permutations operations in products. Kernel values are computed again for every SUM_PERMUTATIONS
// permutations: rows² · permutations / 64 · (3 · dim + an exponential).

#define SUM_ROWS 64
#define SUM_PERMUTATIONS 64
#define SUM_COLUMNS 32
#define SUM_FLUSH 1024
#define SUM_DIMS 16

#define KERNEL_DISTANCE 0
#define KERNEL_GAUSSIAN 1

struct PermutedSumsTask {
    const float* points;
    const u32* members;
    double* first;
    double* row_sums;
    int rows, dim, permutations, kernel;
    float rate;
    int pad;
};

extern "C" __global__ void __launch_bounds__(256) permuted_sums(const PermutedSumsTask* task, const int* shape) {
    grid_dependency_sync();
    const PermutedSumsTask t = *task;
    __shared__ float own[SUM_DIMS][SUM_ROWS], others[SUM_DIMS][SUM_COLUMNS];
    __shared__ float4 values[SUM_COLUMNS][SUM_ROWS / 4], z[SUM_COLUMNS][SUM_PERMUTATIONS / 4];
    __shared__ double sums[16][SUM_PERMUTATIONS];
    const int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;
    const int first_row = blockIdx.x * SUM_ROWS, first_permutation = blockIdx.y * SUM_PERMUTATIONS;
    const u32* members = t.members + (size_t)blockIdx.y * 2 * t.rows;
    auto member = [&](int row, int p) {
        return row < t.rows ? (float)(members[(size_t)(p / 32) * t.rows + row] >> (p % 32) & 1) : 0.0f;
    };
    float acc[4][4] = {};
    double total[4] = {}, row_total = 0.0;
    int since_flush = 0;
    for (int first_column = 0; first_column < t.rows; first_column += SUM_COLUMNS) {
        // Squared distances: a thread computes 8 columns of one row.
        float squares[8] = {};
        for (int dims = 0; dims < t.dim; dims += SUM_DIMS) {
            __syncthreads();
            for (int e = thread; e < SUM_DIMS * SUM_ROWS; e += 256) {
                const int c = dims + e % SUM_DIMS, row = first_row + e / SUM_DIMS;
                own[e % SUM_DIMS][e / SUM_DIMS] = c < t.dim && row < t.rows ? t.points[(size_t)row * t.dim + c] : 0.0f;
            }
            for (int e = thread; e < SUM_DIMS * SUM_COLUMNS; e += 256) {
                const int c = dims + e % SUM_DIMS, row = first_column + e / SUM_DIMS;
                others[e % SUM_DIMS][e / SUM_DIMS] =
                    c < t.dim && row < t.rows ? t.points[(size_t)row * t.dim + c] : 0.0f;
            }
            __syncthreads();
            for (int c = 0; c < SUM_DIMS; c++) {
                const float x = own[c][thread % SUM_ROWS];
                for (int q = 0; q < 8; q++) {
                    const float difference = x - others[c][thread / SUM_ROWS + 4 * q];
                    squares[q] += difference * difference;
                }
            }
        }
        const int row = first_row + thread % SUM_ROWS;
        for (int q = 0; q < 8; q++) {
            const int column = thread / SUM_ROWS + 4 * q;
            float k = t.kernel == KERNEL_GAUSSIAN ? expf(t.rate * squares[q]) : -sqrtf(squares[q]);
            if (row == first_column + column || row >= t.rows || first_column + column >= t.rows) k = 0.0f;
            ((float*)values[column])[thread % SUM_ROWS] = k;
            ((float*)z[column])[thread % SUM_PERMUTATIONS] = member(first_column + column, thread % SUM_PERMUTATIONS);
        }
        __syncthreads();
        for (int j = 0; j < SUM_COLUMNS; j++) {
            const float4 k = values[j][ty], y = z[j][tx];
            const float ks[4] = {k.x, k.y, k.z, k.w}, ys[4] = {y.x, y.y, y.z, y.w};
            for (int a = 0; a < 4; a++)
                for (int b = 0; b < 4; b++) acc[a][b] += ks[a] * ys[b];
        }
        if (blockIdx.y == 0 && thread < SUM_ROWS) {
            float sum = 0.0f;
            for (int j = 0; j < SUM_COLUMNS; j++) sum += ((const float*)values[j])[thread];
            row_total += sum;
        }
        since_flush += SUM_COLUMNS;
        if (since_flush == SUM_FLUSH || first_column + SUM_COLUMNS >= t.rows) {
            since_flush = 0;
            for (int a = 0; a < 4; a++)
                for (int b = 0; b < 4; b++) {
                    total[b] += acc[a][b] * member(first_row + 4 * ty + a, 4 * tx + b);
                    acc[a][b] = 0.0f;
                }
        }
        __syncthreads();
    }
    for (int b = 0; b < 4; b++) sums[ty][4 * tx + b] = total[b];
    __syncthreads();
    if (thread < SUM_PERMUTATIONS) {
        double sum = 0.0;
        for (int i = 0; i < 16; i++) sum += sums[i][thread];
        t.first[(size_t)blockIdx.x * t.permutations + first_permutation + thread] = sum;
    }
    if (blockIdx.y == 0 && thread < SUM_ROWS && first_row + thread < t.rows) t.row_sums[first_row + thread] = row_total;
}
