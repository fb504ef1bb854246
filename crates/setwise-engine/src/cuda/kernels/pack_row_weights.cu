// Packs weights for row kernels (`row_kernel.cu`): rounded to tf32, in the layout of shared memory. A block then loads
// all of its weights with one bulk copy.

struct PackWeightsTask {
    const float* from;
    float* to;
    // Kind 0: row-major. Kind 1: four rows interleaved, `stride` numbers between groups of four. Kind 2: a vector, not
    // rounded.
    int rows, cols, stride, kind;
};

// Grid: (blocks, tasks), grid-stride over rows · cols. `to` is written once per step.
extern "C" __global__ void __launch_bounds__(256) pack_row_weights(const PackWeightsTask* tasks, const int* shape) {
    grid_dependency_sync(tasks + blockIdx.y, shape);
    const PackWeightsTask task = tasks[blockIdx.y];
    for (int i = blockIdx.x * 256 + threadIdx.x; i < task.rows * task.cols; i += gridDim.x * 256) {
        int row = i / task.cols, col = i % task.cols;
        float x = task.from[i];
        // Rows that start at the same bank are read in pairs, so odd ones swap neighbouring groups of sixteen columns.
        int swizzle = task.kind == 0 && task.cols % 32 == 0 && row % 2 ? 16 : 0;
        int at = task.kind == 1 ? row / 4 * task.stride + col * 4 + row % 4 : row * task.cols + (col ^ swizzle);
        task.to[at] = task.kind == 2 ? x : __uint_as_float(tf32(x));
    }
}
