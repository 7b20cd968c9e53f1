/* Describes a plan as a call whose kernel is compiled for it: constants, values and the form of the launch. Host only. */
#ifndef TROPE_FWD_CUDA_PLAN_CALL_CUH
#define TROPE_FWD_CUDA_PLAN_CALL_CUH

#include <string.h>

#include "fwd/cuda/block.cuh"
#include "fwd/cuda/vector_calls.cuh"

/* A call, and its launch. */
struct planned_call {
    call_constants constants; /* it comes first and has no padding, so it is the key */
    call_values values;
    dim3 blocks, threads;
    size_t shared_memory_bytes;
};

#define MOST_CALL_THREADS 512
#define CALL_THREADS      144 /* a block has no more tokens than fit into this number of threads */
#define CALL_SLICE        320 /* the number of items of a block if a token has more than MOST_CALL_THREADS */
#define NEAR_SLICE        80 /* the same if the tokens of a head are neighbours in memory, which a block then takes together */
#define NEAR_CALL_TOKENS  4
#define MOST_MADE         4 /* coefficients of a thread */
static_assert(generic_call<TROPE_F32>::MADE == MOST_MADE, "the emulation runs all of them");

template <class CALL> static inline uint32_t items_of_token(const CALL &call)
{
    return first_item(call, call.operands());
}

/* Sets a stride of a tensor that may be a constant: it is a value if it depends on the number of tokens, so if it is
 * larger than the distance of two tokens. (The stride of a single token is 0, so its strides are values.) */
static inline void set_stride(int64_t stride, int64_t token, int32_t *constant, int32_t *value)
{
    const bool is_value = magnitude(stride) > magnitude(token);
    *constant = is_value ? CALL_STRIDE_IS_VALUE : (int32_t)stride;
    *value = is_value ? (int32_t)stride : 0;
}

static inline void plan_call_tensor(const trope_plan &plan, const void *base, const int64_t *stride, call_tensor *tensor,
                                    int32_t *head, int32_t *group)
{
    const int64_t bytes = plan.element_size, inner = stride[inner_dim(plan)] * bytes,
                  outer = stride[outer_dim(plan)] * bytes, token = stride[TROPE_DIM_TOKEN] * bytes;
    tensor->base = (char *)base;
    tensor->inner = inner;
    tensor->outer = outer;
    set_stride(stride[TROPE_DIM_HEAD] * bytes, token, head, &tensor->head);
    set_stride(stride[TROPE_DIM_GROUP] * bytes, token, group, &tensor->group);
}

/* Returns whether each thread can load cos and sin of its item as vectors. */
template <class CALL> static inline bool loads_vectors(const trope_plan &plan, const CALL &call)
{
    const trope_plan_angles &a = plan.angles;
    const int64_t entry = a.dtype == TROPE_F32 ? 4 : 2, of_vector = 16 / entry;
    const int pairs_of_item = VECTOR<CALL>;
    bool one_plane = true;
    for (int pair = 0; pair < plan.pairs && (call.axes() > 1 || call.has_planes()); pair++)
        one_plane = one_plane && trope_pair_plane(&plan, pair) == trope_pair_plane(&plan, pair - pair % pairs_of_item);
    return a.source == TROPE_ANGLES_TABLE && a.stride.column == 1 && one_plane && !cuts_halves(call) &&
           !(call.per_element() && call.interleaved_columns()) && (uintptr_t)a.cos % 16 == 0 &&
           (uintptr_t)a.sin % 16 == 0 && a.stride.row % of_vector == 0 && a.stride.batch % of_vector == 0 &&
           a.stride.axis % of_vector == 0 && !rearranges_in_place(plan);
}

static inline void describe_positions(const trope_plan &plan, position_kind kind, planned_call *of)
{
    const trope_position_source &s = plan.position_source;
    call_constants *const c = &of->constants;
    call_values *const v = &of->values;
    c->positions = s.boundaries ? CALL_SEARCHED : kind == POSITIONS_READ ? CALL_READ : CALL_FROM_TOKENS;
    c->axes = s.ids && plan.pair_axes > 1 ? plan.pair_axes : 1;
    c->ids_64 = s.ids ? s.ids_64 : s.starts_64;
    c->starts_64 = s.starts_64;
    c->has_starts = s.starts != NULL;
    v->ids = (const char *)(s.ids ? s.ids : s.starts);
    const index_source source = plan_source(s);
    v->id_batch = source.batch;
    v->id_token = source.token;
    v->id_axis = s.position_axes > 1 ? source.axis : 0;
    v->rows = plan.angles.rows;
    const token_positions p = plan_positions(s);
    v->from_tokens = {p.step, p.first, p.second_run, p.gap};
    if (!s.boundaries)
        return;
    c->boundaries_64 = s.boundaries_64;
    c->has_unpadded = s.unpadded != s.boundaries;
    c->stream = s.stream;
    c->splits = s.cp.size > 1;
    c->padding = s.padding;
    v->boundaries = s.boundaries;
    v->unpadded = s.unpadded;
    v->starts = s.starts;
    v->count = s.count;
    v->sequence_tokens = s.tokens;
    v->cp = s.cp;
}

static inline void describe_angles(const trope_plan &plan, planned_call *of)
{
    const trope_plan_angles &a = plan.angles;
    call_constants *const c = &of->constants;
    call_values *const v = &of->values;
    c->angles = a.source;
    v->cosine_scale = (float)plan.cosine_scale;
    v->sine_scale = (float)plan.sine_scale;
    if (a.source == TROPE_ANGLES_PHASE)
        return;
    const int64_t entry = a.dtype == TROPE_F32 ? 4 : 2;
    c->table_dtype = a.dtype;
    c->per_element = a.per_element;
    c->interleaved_columns = plan.interleaved_columns;
    c->swap_sines = plan.swap_sines;
    c->column = (int32_t)a.stride.column;
    c->has_planes = plan.planes > 1 && a.stride.axis;
    c->out_of_range = a.out_of_range;
    v->table[0] = (const char *)(a.source == TROPE_ANGLES_FREQS ? a.freqs : a.cos);
    v->table[1] = (const char *)(a.source == TROPE_ANGLES_FREQS ? a.freqs : a.sin);
    v->table_batch = a.stride.batch * entry;
    v->table_row = a.stride.row * entry;
    v->table_axis = a.stride.axis * entry;
}

static inline void describe_operands(const trope_plan &plan, planned_call *of)
{
    call_constants *const c = &of->constants;
    for (int i = 0; i < plan.operand_count; i++) {
        trope_plan_operand o = plan.operands[i];
        if (!moves_operand(plan, o))
            continue;
        join_groups(&o, false);
        const int at = c->operands++;
        auto &operand = c->operand[at];
        operand.groups = o.groups;
        operand.heads_per_group = o.heads_per_group;
        operand.head_dim = o.head_dim;
        operand.rotary_dim = o.rotary_dim;
        operand.rotary_offset = o.rotary_offset;
        operand.in_place = o.in_place != 0;
        operand.moves_rest = writes_rest(plan, o);
        plan_call_tensor(plan, o.src, o.src_stride, &of->values.src[at], &operand.src_head, &operand.src_group);
        plan_call_tensor(plan, o.dst, o.dst_stride, &of->values.dst[at], &operand.dst_head, &operand.dst_group);
    }
}

/* Cuts the tokens into blocks. The number of tokens of a block is a power of two. Returns false if no block can take the
 * call. */
template <class CALL> static inline bool cut_call(const trope_plan &plan, const CALL &call, planned_call *of)
{
    call_constants *const c = &of->constants;
    const uint32_t total = items_of_token(call), of_head = items_of_head(call, 0),
                   multiprocessors = (uint32_t)std::max(facts_of_device().multiprocessors, 1);
    const bool near = tokens_are_near(plan);
    const uint32_t most = near ? NEAR_SLICE : total <= MOST_CALL_THREADS ? MOST_CALL_THREADS : CALL_SLICE;
    uint32_t slices = (uint32_t)quotient_up(total, most), items = (uint32_t)quotient_up(total, slices);
    if (slices > 1)
        items = (uint32_t)quotient_up(items, of_head) * of_head;
    uint32_t tokens = near ? NEAR_CALL_TOKENS : 1;
    while (tokens * 2 * items <= CALL_THREADS && tokens < MOST_SEARCHED_TOKENS)
        tokens *= 2;
    if (of->values.tokens * slices < (int64_t)tokens * multiprocessors)
        tokens = 1;
    items = std::max(items, (uint32_t)quotient_up(SEARCHING_LANES, tokens));
    slices = (uint32_t)quotient_up(total, items);
    c->tokens_of_block = (int32_t)tokens;
    c->items_of_block = (int32_t)items;
    of->threads = dim3(items, tokens);
    of->blocks = dim3((unsigned)quotient_up(of->values.tokens, tokens), slices);
    of->shared_memory_bytes = layout_of(call).end;
    return items * tokens <= MOST_CALL_THREADS && slices <= 65535 && made_by_thread(call) <= MOST_MADE &&
           of->shared_memory_bytes <= UNASKED_SHARED_MEMORY && !(slices > 1 && rearranges_in_place(plan));
}

#define LITTLE_BYTES 12e6

/* Returns whether the kernels that are made ahead of time are faster, as measured on an H200: with packed sequences and
 * phase steps; in calls that move little, except with positions from tokens and phase steps; and if threads would load
 * elements only because padding is filled in place. */
template <class CALL> static inline bool library_is_faster(const CALL &call)
{
    const double moved = (double)call.values.tokens * items_of_token(call) * 64; /* an item is 32 bytes, read and written */
    for (int i = 0; i < call.operands(); i++)
        if (call.in_place(i) && rest_vectors(call, i))
            return true;
    return call.angles() == TROPE_ANGLES_PHASE
               ? call.positions() == CALL_SEARCHED || (call.positions() == CALL_READ && moved < LITTLE_BYTES)
               : moved < LITTLE_BYTES;
}

/* Describes a rotation. Returns false if only the kernels that are made ahead of time can run it. */
template <int DTYPE> static inline bool describe_call_of(const trope_plan &plan, bool all, planned_call *of)
{
    const position_kind kind = kind_of_positions(plan);
    const trope_position_source &s = plan.position_source;
    int moving = 0, rotating = 0;
    memset(of, 0, sizeof *of);
    for (int i = 0; i < plan.operand_count; i++) {
        moving += moves_operand(plan, plan.operands[i]);
        rotating += plan.operands[i].rotary_dim > 0;
        if (plan.operands[i].accumulate || plan.operands[i].summed_heads || plan.operands[i].norm.is_given)
            return false;
    }
    if (moving == 0 || plan.batch * plan.tokens == 0 || elements_of_token(plan) > INT32_MAX / 8 ||
        plan.pairs % VECTOR<generic_call<DTYPE>> || moving > CALL_OPERANDS || rotating == 0 || plan.pairs > CALL_PAIRS ||
        !can_be_vectors(plan) || kind == POSITIONS_GENERIC || s.tokens >= INT32_MAX / s.cp.size ||
        plan.angles.dtype == TROPE_F64)
        return false;
    call_constants *const c = &of->constants;
    c->dtype = plan.dtype;
    c->rounding = plan.rounding;
    c->interleaved_src = plan.interleaved_src;
    c->interleaved_dst = plan.interleaved_dst;
    c->pairs = plan.pairs;
    c->parts = plan.parts;
    c->batch_outermost = plan.batch_outermost != 0;
    const int64_t inner_tokens = trope_inner_tokens(&plan);
    of->values.tokens = plan.batch * plan.tokens;
    of->values.inner = trope_make_divisor((uint32_t)inner_tokens);
    c->one_entry = plan.batch == 1 && c->batch_outermost;
    of->values.status = plan.status;
    describe_operands(plan, of);
    describe_positions(plan, kind, of);
    describe_angles(plan, of);
    if (c->axes > 1 || c->has_planes)
        memcpy(c->axis_bits, plan.axis_bits, sizeof c->axis_bits);
    const generic_call<DTYPE> call = {of->values, *c};
    c->coefficients = loads_vectors(plan, call) ? CALL_LOADED : CALL_SHARED;
    c->unit_scale = c->coefficients == CALL_LOADED && c->rounding == TROPE_ROUND_NATIVE && of->values.cosine_scale == 1 &&
                    (of->values.sine_scale == 1 || of->values.sine_scale == -1);
    return (all || !library_is_faster(call)) && cut_call(plan, call, of);
}

/* `all`: also if the kernels that are made ahead of time are faster, as in f32. */
static inline bool describe_call(const trope_plan &plan, bool all, planned_call *of)
{
    return plan.dtype == TROPE_BF16  ? describe_call_of<TROPE_BF16>(plan, all, of)
           : plan.dtype == TROPE_F16 ? describe_call_of<TROPE_F16>(plan, all, of)
           : plan.dtype == TROPE_F32 ? all && describe_call_of<TROPE_F32>(plan, all, of)
                                     : false;
}

/* Returns how many blocks a multiprocessor should hold, which limits the registers of a thread: to 32 in most calls, to 48
 * where that is faster, and to 64 where a thread loads coefficients in fp32. (These are the numbers for the 2048 threads of
 * compute capability 8.0 and 9.0. The compiler ignores what a smaller multiprocessor cannot hold.) */
static inline uint32_t blocks_of_multiprocessor(const call_constants &c)
{
    const uint32_t threads = (uint32_t)quotient_up(c.items_of_block * c.tokens_of_block, 32) * 32;
    const bool loads_fp32 = c.coefficients == CALL_LOADED && c.table_dtype == TROPE_F32,
               is_dense = c.positions == CALL_FROM_TOKENS && threads >= 256;
    return std::max(1u, std::min((loads_fp32 ? 1024 : is_dense ? 1280 : 2048) / threads, 32u));
}

#endif
