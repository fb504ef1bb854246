// Weights as chains want them in shared memory (`row_chain.cu`), rounded for the matrix units and laid out for reading, so that a block fetches all of its own at once.

struct ChainWeightTask {
    const float* from;
    float* to;
    // Kind 0 is rows, kind 1 four rows number by number, `stride` from them to the next four, kind 2 a vector, which is as it was.
    int rows, cols, stride, kind;
};

extern "C" __global__ void __launch_bounds__(256) chain_weights(const ChainWeightTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const ChainWeightTask task = tasks[blockIdx.y];
    for (int i = blockIdx.x * 256 + threadIdx.x; i < task.rows * task.cols; i += gridDim.x * 256) {
        int row = i / task.cols, col = i % task.cols;
        float x = task.from[i];
        // Rows that begin at the same bank are read two at a time.
        int aside = task.kind == 0 && task.cols % 32 == 0 && row % 2 ? 16 : 0;
        int at = task.kind == 1 ? row / 4 * task.stride + col * 4 + row % 4 : row * task.cols + (col ^ aside);
        task.to[at] = task.kind == 2 ? x : __uint_as_float(tf32(x));
    }
}
