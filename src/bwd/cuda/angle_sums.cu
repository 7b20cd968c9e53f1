/* The gradient of the angles on CUDA, second part: the adders combine sums of units into sums of rows of d_freqs. Each sum
 * has a fixed order. A run or thread adds its units in ascending order of their numbers (batch * tokens + token). Then the
 * results of runs or threads are added.
 *
 * The shapes determine which units share a row. If there are few packed sequences, cu_seqlens determines it. Otherwise
 * our own stable radix sort finds these units. Its kernels are all in this file, and the size of its scratch memory is
 * known without a device. */
#include "bwd/cuda/gradient_call.cuh"
#include "bwd/cuda/kernels.h"

/* Loads several numbers together, then adds them in order. A loop that adds each number as soon as it is loaded would
 * wait for each load. */
template <typename LOAD> __device__ __forceinline__ double add_together(double sum, LOAD load)
{
    double loaded[LOADED_TOGETHER];
#pragma unroll
    for (int i = 0; i < LOADED_TOGETHER; i++)
        loaded[i] = load((uint32_t)i);
#pragma unroll
    for (int i = 0; i < LOADED_TOGETHER; i++)
        sum += loaded[i];
    return sum;
}

/* ---- units in an order that the shapes determine ---- */

/* Adds rows of sums. Several threads share a column: each adds every n-th row, and a tree adds the results of these
 * threads. */
static __global__ void __launch_bounds__(WIDE_THREADS) add_rows_kernel(KERNEL_PARAMETER(angle_sums) s)
{
    __shared__ double partial[WIDE_THREADS];
    take_turn();
    const uint32_t of_block = WIDE_THREADS / s.column_threads, columns = columns_of(s.plan);
    const int64_t at = (int64_t)blockIdx.x * of_block + threadIdx.x % of_block, token = at / columns;
    double sum = 0;
    for (int64_t row = threadIdx.x / of_block; row < s.rows; row += s.column_threads * LOADED_TOGETHER)
        sum = add_together(sum, [&](uint32_t i) {
            const int64_t of_thread = row + i * s.column_threads;
            return of_thread < s.rows && at < s.width ? __ldcs(s.sums + of_thread * s.row_stride + at * s.column_stride)
                                                      : 0;
        });
    partial[threadIdx.x] = sum;
    for (uint32_t half = WIDE_THREADS / 2; half >= of_block; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x >= of_block || at >= s.width)
        return;
    if (s.plan.d_inv_freq)
        s.plan.d_inv_freq[at] = signed_sum(s.plan, partial[threadIdx.x]);
    else /* the row of d_freqs; if d_freqs has only one row, the position does not matter */
        angle_column(s.plan, (uint32_t)(at - token * columns))
            .store(0, trope_dense_position(&s.plan.position_source, token), partial[threadIdx.x]);
}

/* ---- units of packed sequences ---- */

/* Tokens [begin, begin + length) of a sequence or a gap. The run is empty if its boundaries are invalid. */
struct token_run {
    int32_t begin, length;
};

/* Loads the run of a sequence. Number 0 is the gap before the first sequence, and the last number is the gap after the last
 * sequence. */
__device__ __forceinline__ token_run load_sequence(const trope_position_source &s, int32_t number)
{
    if (number > (int32_t)s.count + 1)
        return {0, 0};
    const narrow_bounds bounds = narrow_load_bounds(s, number);
    const bool is_valid = narrow_is_gap(&s, number) || narrow_check_bounds(&s, bounds) == TROPE_BOUNDS_VALID;
    const narrow_span span = narrow_span_of_bounds(&s, number, bounds, 0);
    return {span.begin, is_valid && span.begin >= 0 && span.begin < span.end ? span.end - span.begin : 0};
}

/* Adds each row of d_freqs over the sequences that have a token at that position. A block has one or a few rows, which
 * share its warps evenly. First it lists the sequences that reach its first row. Each warp of a row adds every n-th
 * sequence of the list, then the results of the warps are added in order. The kernel reads cu_seqlens before the
 * previous kernel of the same call has ended: see early_launch.cuh. */
static __global__ void __launch_bounds__(SUMS_THREADS) add_sequences_kernel(KERNEL_PARAMETER(angle_sums) s)
{
    __shared__ token_run list[SUMS_THREADS];
    __shared__ uint32_t counts[SUMS_WARPS];
    __shared__ double sums[SUMS_THREADS];
    const trope_plan &plan = s.plan;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = columns_of(plan),
                   number = warp / s.row_warps, share = warp % s.row_warps;
    const int64_t first_row = (int64_t)blockIdx.x * (SUMS_WARPS / s.row_warps), row = first_row + number;
    const token_run own = load_sequence(plan.position_source, (int32_t)threadIdx.x);
    take_turn();
    const uint32_t reach = __ballot_sync(UINT32_MAX, own.length > first_row);
    uint32_t at = (uint32_t)__popc(reach & ((1u << lane) - 1)), count = 0;
    counts[warp] = (uint32_t)__popc(reach);
    __syncthreads();
    for (uint32_t w = 0; w < SUMS_WARPS; w++) {
        at += w < warp ? counts[w] : 0;
        count += counts[w];
    }
    if (own.length > first_row)
        list[at] = own;
    __syncthreads();
    for (uint32_t first = 0; first < columns; first += 32) {
        const uint32_t column = first + lane;
        double sum = 0;
        for (uint32_t i = share; i < count; i += s.row_warps * LOADED_TOGETHER)
            sum = add_together(sum, [&](uint32_t j) {
                const token_run run = list[min(i + j * s.row_warps, count - 1)];
                const bool is_there = i + j * s.row_warps < count && row < run.length && column < columns;
                return is_there ? __ldcs(s.sums + (run.begin + row) * columns + column) : 0;
            });
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (uint32_t w = 1; w < s.row_warps && share == 0; w++)
            sum += sums[threadIdx.x + w * 32];
        if (share == 0 && column < columns && row < plan.angles.rows)
            angle_column(plan, column).store(0, row, sum);
        __syncthreads();
    }
}

/* ---- sorting ---- */

__device__ __forceinline__ uint32_t tile_items(const angle_sums &s)
{
    return SUMS_WARPS * s.warp_items;
}

/* Returns the current digit of an item's key. */
__device__ __forceinline__ uint32_t digit_at(const angle_sums &s, uint32_t i)
{
    return s.keys[s.from][i] >> s.shift & ((1u << s.bits) - 1);
}

/* Counts how often each digit occurs in each tile. */
static __global__ void __launch_bounds__(SUMS_THREADS) count_digits_kernel(KERNEL_PARAMETER(angle_sums) s)
{
    extern __shared__ __align__(16) char shared_memory[];
    take_turn();
    uint32_t *counts = (uint32_t *)shared_memory;
    for (uint32_t d = threadIdx.x; d < 1u << s.bits; d += SUMS_THREADS)
        counts[d] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < tile_items(s) && blockIdx.x * tile_items(s) + i < s.items; i += SUMS_THREADS)
        atomicAdd(&counts[digit_at(s, blockIdx.x * tile_items(s) + i)], 1u);
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < 1u << s.bits; d += SUMS_THREADS)
        s.counts[d * s.tiles + blockIdx.x] = counts[d];
}

/* Replaces each count by the sum of the counts before it. Runs as one block. */
static __global__ void __launch_bounds__(WIDE_THREADS) scan_counts_kernel(KERNEL_PARAMETER(angle_sums) s)
{
    __shared__ uint32_t sums[WIDE_THREADS];
    take_turn();
    const uint32_t count = s.tiles << s.bits;
    uint32_t before = 0;
    for (uint32_t base = 0; base < count; base += WIDE_THREADS) {
        const uint32_t i = base + threadIdx.x, own = i < count ? s.counts[i] : 0;
        uint32_t sum = own, total = 0;
        for (uint32_t distance = 1; distance <= WIDE_THREADS; distance *= 2) {
            sums[threadIdx.x] = sum;
            __syncthreads();
            sum += threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
            total = sums[WIDE_THREADS - 1];
            __syncthreads();
        }
        if (i < count)
            s.counts[i] = before + sum - own;
        before += total;
    }
}

/* Finds where each warp of the tile stores its first item with each digit. */
__device__ __forceinline__ void find_warp_starts(const angle_sums &s, uint32_t *starts)
{
    const uint32_t digits = 1u << s.bits, warp = threadIdx.x / 32, first = blockIdx.x * tile_items(s) + warp * s.warp_items;
    for (uint32_t i = threadIdx.x; i < SUMS_WARPS * digits; i += SUMS_THREADS)
        starts[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x % 32; i < s.warp_items && first + i < s.items; i += 32)
        atomicAdd(&starts[warp * digits + digit_at(s, first + i)], 1u);
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < digits; d += SUMS_THREADS) {
        uint32_t start = s.counts[d * s.tiles + blockIdx.x];
        for (uint32_t w = 0; w < SUMS_WARPS; w++) {
            const uint32_t count = starts[w * digits + d];
            starts[w * digits + d] = start;
            start += count;
        }
    }
    __syncthreads();
}

/* Moves each item to its place: after all items with smaller digits, and after the earlier items with the same digit. */
static __global__ void __launch_bounds__(SUMS_THREADS) move_items_kernel(KERNEL_PARAMETER(angle_sums) s)
{
    extern __shared__ __align__(16) char shared_memory[];
    take_turn();
    uint32_t *starts = (uint32_t *)shared_memory;
    find_warp_starts(s, starts);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32,
                   first = blockIdx.x * tile_items(s) + warp * s.warp_items;
    starts += warp << s.bits;
    for (uint32_t i = lane; i < s.warp_items; i += 32) {
        const bool present = first + i < s.items;
        const uint32_t digit = present ? digit_at(s, first + i) : UINT32_MAX;
        const uint32_t same = __match_any_sync(UINT32_MAX, digit), rank = __popc(same & ((1u << lane) - 1));
        const uint32_t start = present ? starts[digit] : 0;
        __syncwarp();
        if (present) {
            s.keys[!s.from][start + rank] = s.keys[s.from][first + i];
            s.values[!s.from][start + rank] = s.values[s.from][first + i];
            if (rank == 0)
                starts[digit] = start + __popc(same);
        }
        __syncwarp();
    }
}

/* ---- sorted units ---- */

/* Adds one column of the sorted units first, first + step, ... to `sum`. */
__device__ __forceinline__ double add_units(const angle_sums &s, uint32_t column, double sum, uint32_t first, uint32_t last,
                                            uint32_t step)
{
    const uint32_t columns = columns_of(s.plan);
    const uint32_t *const units = s.values[s.from];
#pragma unroll 4
    for (uint32_t i = first; i < last; i += step)
        sum += s.sums[(size_t)units[i] * columns + column];
    return sum;
}

/* If all units of a run have the same key, a warp adds them and stores the sum in place of the first unit. So many
 * threads are busy even if many units share one row. */
static __global__ void __launch_bounds__(SUMS_THREADS) join_runs_kernel(KERNEL_PARAMETER(angle_sums) s)
{
    take_turn();
    const uint32_t columns = columns_of(s.plan);
    const uint32_t first = (blockIdx.x * SUMS_WARPS + threadIdx.x / 32) * RUN_ITEMS, last = first + RUN_ITEMS;
    if (last > s.items)
        return;
    const uint32_t key = s.keys[s.from][first];
    if (s.keys[s.from][last - 1] != key || key == (uint32_t)s.plan.pair_axes * s.buckets)
        return;
    for (uint32_t column = threadIdx.x % 32; column < columns; column += 32)
        if (axis_of_column(s.plan, column) == key / s.buckets)
            s.sums[(size_t)s.values[s.from][first] * columns + column] = add_units(s, column, 0, first, last, 1);
}

/* Returns how many keys are below `key`, which is the same for all threads of the warp. In each round, each thread
 * compares one of 32 evenly spaced keys. */
__device__ __forceinline__ uint32_t count_below(const angle_sums &s, uint32_t key)
{
    uint32_t low = 0, high = s.items;
    while (low < high) {
        const uint32_t step = (high - low + 31) / 32, i = low + threadIdx.x % 32 * step;
        const uint32_t reached = __ballot_sync(UINT32_MAX, i >= high || s.keys[s.from][i] >= key);
        const uint32_t first = reached ? __ffs((int)reached) - 1 : 32;
        high = first < 32 ? min(high, low + first * step) : high;
        low = first ? low + (first - 1) * step + 1 : low;
    }
    return low;
}

/* Computes each row of d_freqs by one warp. It adds the units before the first whole run, then the sums of whole runs,
 * then the remaining units. Without items, the sums are 0. Elements between the strides of d_freqs are not written. */
static __global__ void __launch_bounds__(SUMS_THREADS) sum_rows_kernel(KERNEL_PARAMETER(angle_sums) s)
{
    take_turn();
    const trope_plan &plan = s.plan;
    const uint32_t columns = columns_of(plan), bucket = blockIdx.x * SUMS_WARPS + threadIdx.x / 32;
    if (bucket >= s.buckets)
        return;
    const int64_t batch = bucket / rows_of_gradient(plan), row = bucket - batch * rows_of_gradient(plan);
    for (uint32_t axis = 0; axis < (uint32_t)plan.pair_axes; axis++) {
        const uint32_t first = count_below(s, axis * s.buckets + bucket),
                       last = count_below(s, axis * s.buckets + bucket + 1);
        const uint32_t runs = min((first + RUN_ITEMS - 1) / RUN_ITEMS * RUN_ITEMS, last),
                       rest = max(last / RUN_ITEMS * RUN_ITEMS, runs);
        for (uint32_t column = threadIdx.x % 32; column < columns; column += 32) {
            if (axis_of_column(s.plan, column) != axis)
                continue;
            double sum = add_units(s, column, 0, first, runs, 1);
            sum = add_units(s, column, sum, runs, rest, RUN_ITEMS);
            sum = add_units(s, column, sum, rest, last, 1);
            angle_column(plan, column).store(batch, row, sum);
        }
    }
}

const trope_angle_kernels trope_angle_sums = {(const void *)add_rows_kernel,     (const void *)add_sequences_kernel,
                                              (const void *)count_digits_kernel, (const void *)scan_counts_kernel,
                                              (const void *)move_items_kernel,   (const void *)join_runs_kernel,
                                              (const void *)sum_rows_kernel};
