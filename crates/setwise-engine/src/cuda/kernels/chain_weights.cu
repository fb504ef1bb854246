// Weights as chains want them in shared memory (`row_chain.cu`), rounded for the matrix units and laid out for reading, so that a block fetches all of its own at once.

struct ChainWeightTask {
    const float* from;
    float* to;
    // `stride` numbers from one row to the next, or from two rows to the next two where these lie in pairs, number by number; `kind` is 0 for rows, 1 for such pairs and 2 for vectors, which are as they were.
    int rows, cols, stride, kind;
};

extern "C" __global__ void __launch_bounds__(256) chain_weights(const ChainWeightTask* tasks, const int* shape) {
    in_turn(tasks + blockIdx.y, shape);
    const ChainWeightTask task = tasks[blockIdx.y];
    for (int i = blockIdx.x * 256 + threadIdx.x; i < task.rows * task.cols; i += gridDim.x * 256) {
        int row = i / task.cols, col = i % task.cols;
        float x = task.from[i];
        int at = task.kind == 1 ? row / 2 * task.stride + col * 2 + row % 2 : row * task.stride + col;
        task.to[at] = task.kind == 2 ? x : __uint_as_float(tf32(x));
    }
}
