/* The register block: a short-lived block that processes one or a few tokens with all heads of all operands. Each thread
 * has an item: two vectors of a head, which hold a few pairs (or two elements, which are one pair). The item stays in
 * registers from load to store. In the code, `in_head` is the index of an item in its head, and `in_block` the index of
 * a token in its block. During the loads, all threads together compute the coefficients of the tokens, which are the
 * same for all heads: see rotate.cuh.
 *
 * A block lives 1 or 2 us, so all time before its first load is lost. Therefore the host cuts operands into segments, in
 * which an address is a sum of products. Threads have two-dimensional indices, which avoid divisions. */
#ifndef TROPE_FWD_CUDA_REGISTER_BLOCK_CUH
#define TROPE_FWD_CUDA_REGISTER_BLOCK_CUH

#include "core/divide.h"
#include "fwd/cuda/coefficients.cuh"

/* The maximum number of threads of a block: in general; for tokens with one or a few heads (rotate_alone.cuh); and for
 * sums by vectors (bwd/cuda/head_sums.cuh). */
#define BLOCK_THREADS 512
#define ALONE_THREADS 256
#define SUM_THREADS   256
#define SUM_COPIES    4 /* with sums: items of pass-through elements that a thread copies at a time */

/* The launch bounds of a kernel: the maximum number of threads of a block, and how many such blocks a multiprocessor
 * should hold. The latter limits the registers of a thread. */
struct block_limit {
    int threads, blocks;
};

constexpr block_limit block_limits(int positions, bool is_wide)
{
    return is_wide                          ? block_limit{BLOCK_THREADS, 2}
           : positions == POSITIONS_GENERIC ? block_limit{320, 4}
                                            : block_limit{384, 4};
}

/* The capacity of the fast paths' parameters. Every kilobyte of parameters costs the host 0.1 to 0.3 us. */
#define NARROW_SEGMENTS 6
#define FAST_PAIRS      128
/* An operand has its window, and the elements that pass through before and after it. */
#define MOST_SEGMENTS (3 * TROPE_MAX_OPERANDS)

/* The addresses of a segment's items, in bytes: the distance between neighbours in each dimension, and from the first
 * vector of an item to its second one. The two dimensions of tokens are batch and token. Their order in the memory of
 * operand 0 decides which of them is the outer dimension. */
template <typename STRIDE> struct block_tensor {
    char *base;
    STRIDE inner, head, item, second;
    STRIDE outer, group;
    STRIDE part; /* extra distance of an item in the second part of a window; twice this in the third, and so on */
};

/* A range of elements of every head of an operand. It is either rotated or copied. */
template <typename STRIDE> struct block_segment {
    block_tensor<STRIDE> src, dst;
    STRIDE kept_item, kept_second, kept_part; /* strides of dst if elements keep their places in a head */
    int64_t moved;                            /* bytes from an item in src to the same item in dst, if `alike` */
    trope_divisor head_items;                 /* the number of items in a head, with idle ones */
    trope_divisor heads_per_group;            /* the number in each group */
    uint32_t heads;                           /* the number in all groups */
    /* The number of heads that the items of a token are numbered for. Sums count their slots. With norms, NORM_HEADS heads
     * count as one. */
    uint32_t places;
    uint32_t working;      /* the number of items in a head that are not idle */
    uint32_t part_items;   /* items in each part of a window */
    uint32_t is_intricate; /* it has groups, parts or idle items: one test covers all rare cases */
    uint32_t is_loaded;    /* 0 if the elements pass through in place, so that they are only overwritten */
    uint32_t rotates, in_place;
    uint32_t is_fast; /* it rotates, rounds once and overwrites dst: one test finds the common case */
    uint32_t alike;   /* items of src and dst have the same strides and the same elements */
    uint32_t is_odd;  /* copied: item 0 has one vector of its own, and its second vector is another item's first */
    /* For sums (bwd/cuda/head_sums.cuh): the number of heads that one sum adds, log2 of the number of slots that share
     * them, and the number of rounds. (A slot has one round for each head. Without a sum, there are 0 rounds.) */
    uint32_t terms, slot_bits, rounds;
    uint32_t accumulate;
};

/* The tokens and items of a call, and how they are cut. A block has tokens_of_block tokens, and a slice of items_of_block
 * of their items. */
struct block_shape {
    int64_t tokens;
    int64_t inner_tokens;
    trope_divisor inner;     /* a divisor for inner_tokens, if it is below 2^31 */
    uint32_t two_dimensions; /* the outer dimension is larger than 1 */
    uint32_t tokens_of_block, items_of_block;
    uint32_t items;             /* of a token */
    uint32_t is_uniform;        /* all heads have the same number of items, so no thread divides */
    uint32_t is_simple;         /* the call is uniform, and its addresses are simple (ADDRESSES_SIMPLE) */
    uint32_t units;             /* of a token: its heads if uniform, otherwise its items */
    uint32_t units_of_block;    /* of a token */
    uint32_t any_is_intricate;  /* true if any segment is intricate */
    uint32_t all_are_alike;     /* true if all segments with items are alike */
    uint16_t segments;          /* the number of segments with items */
    uint16_t rest;              /* the number of segments without items, which follow the others: REST in plan_blocks.cuh */
    uint32_t rotating_slices;   /* the number of slices that rotate; they come first, and later slices only copy */
    uint32_t slices_first;      /* blocks of the same tokens are adjacent in the grid, and so run at the same time */
    uint32_t batch_outermost;   /* outer is batch and inner is token; otherwise the reverse */
    uint32_t neighbours;        /* the innermost dimension in memory: NEAR_... */
    uint32_t couples_of_token;  /* the number of couples for which shared memory has room, for each token */
    trope_divisor window_items; /* in the widest window */
    uint32_t splits;            /* 1: the second half of an item's pairs is window_items items further: see block_form */
    uint32_t second_at;         /* where the couples of second elements begin, counted in couples */
    uint32_t tokens_at, terms_at; /* where the positions and the terms of sums begin in shared memory, in bytes */
    /* For sums: */
    uint32_t summing_slices;  /* the number of slices that have items of sums; they come first */
    uint32_t slots, rounds;   /* the maximum of all operands, powers of two */
    uint32_t most_head_items; /* the maximum number of items of a head */
    uint32_t terms;           /* the number of terms for which shared memory has room */
};

/* The kinds of neighbours: consecutive threads have consecutive items of a head, heads, or tokens. */
enum { NEAR_ITEMS, NEAR_HEADS, NEAR_TOKENS };

template <typename OF_STRIDE, int SEGMENTS> struct block_call {
    typedef OF_STRIDE stride;

    block_shape shape;
    uint32_t first_unit[SEGMENTS]; /* the first unit of each segment; UINT32_MAX for unused segments */
    block_segment<stride> segments[SEGMENTS];
    cuda_plan plan;
};

typedef block_call<int32_t, NARROW_SEGMENTS> narrow_call;
typedef block_call<int64_t, MOST_SEGMENTS> wide_call;

/* The phase steps, as a parameter. If they begin in the middle of 64 bytes, small calls take 0.13 us longer. */
template <int PAIRS> struct alignas(64) phase_steps {
    uint64_t of[PAIRS];
};

/* ---- the work of a block ---- */

/* The index of the block's group of tokens, and of its slice of their items. */
__device__ __forceinline__ uint32_t block_of_tokens(const block_shape &shape)
{
    return shape.slices_first ? blockIdx.y : blockIdx.x;
}

__device__ __forceinline__ uint32_t slice_of_block(const block_shape &shape)
{
    return shape.slices_first ? blockIdx.x : blockIdx.y;
}

template <typename INDEX> __device__ __forceinline__ INDEX first_token_of_block(const block_shape &shape)
{
    return (INDEX)block_of_tokens(shape) * (INDEX)shape.tokens_of_block;
}

/* The last block may have fewer tokens than the others. */
template <typename INDEX> __device__ __forceinline__ uint32_t count_tokens(const block_shape &shape, INDEX first_token)
{
    return (uint32_t)min((INDEX)shape.tokens_of_block, (INDEX)shape.tokens - first_token);
}

/* ---- the work of a thread ---- */

struct block_item {
    uint32_t segment, head, in_head;
    uint32_t in_block; /* the index of its token in the block */
    bool present;
};

template <class CALL> __device__ __forceinline__ uint32_t find_segment(const CALL &call, uint32_t unit)
{
    uint32_t segment = (unit >= call.first_unit[1]) + (unit >= call.first_unit[2]);
#pragma unroll 1
    for (uint32_t i = 3; i < call.shape.segments; i++)
        segment += unit >= call.first_unit[i];
    return segment;
}

/* The terms of an address. SIMPLE has the token, head and item of one batch entry (addresses_are_simple in
 * vector_calls.cuh). OF_ONE_ENTRY also has a group and a part of the window. GENERIC also has a batch entry. */
enum address_kind { ADDRESSES_SIMPLE, ADDRESSES_OF_ONE_ENTRY, ADDRESSES_GENERIC };

/* ANY_ORDER: the innermost dimension may also be heads or tokens. */
template <bool ANY_ORDER, int ADDRESSES, class CALL>
__device__ __forceinline__ block_item find_item(const CALL &call, uint32_t tokens, uint32_t in_block)
{
    const block_shape &shape = call.shape;
    const bool is_uniform = ADDRESSES == ADDRESSES_SIMPLE || shape.is_uniform,
               by_tokens = ANY_ORDER && shape.neighbours == NEAR_TOKENS;
    const uint32_t unit =
        slice_of_block(shape) * shape.units_of_block + (is_uniform || by_tokens ? threadIdx.y : threadIdx.x);
    block_item it;
    it.in_block = by_tokens ? threadIdx.x : in_block;
    it.segment = find_segment(call, unit);
    const auto &s = call.segments[it.segment];
    const uint32_t of_segment = unit - call.first_unit[it.segment];
    if (is_uniform) {
        it.in_head = threadIdx.x;
        it.head = of_segment;
    } else if (ANY_ORDER && shape.neighbours == NEAR_HEADS) {
        it.in_head = of_segment / s.heads;
        it.head = of_segment - it.in_head * s.heads;
    } else {
        it.head = trope_divide(&s.head_items, of_segment);
        it.in_head = of_segment - it.head * s.head_items.divisor;
    }
    it.present = it.in_block < tokens && unit < shape.units;
    if (ADDRESSES != ADDRESSES_SIMPLE && shape.any_is_intricate && s.is_intricate)
        it.present = it.present && it.head < s.places && it.in_head < s.working;
    return it;
}

/* A token of the call. INDEX may be int32_t if there are fewer than 2^31 tokens. */
template <typename INDEX> struct block_token {
    INDEX outer, inner;

    /* (These are products because a condition would make the compiler emit two copies of the kernel.) */
    __device__ __forceinline__ int64_t batch(const block_shape &shape) const
    {
        return inner + (outer - inner) * (INDEX)shape.batch_outermost;
    }

    __device__ __forceinline__ int64_t index(const block_shape &shape) const
    {
        return outer + (inner - outer) * (INDEX)shape.batch_outermost;
    }
};

template <int ADDRESSES, typename INDEX>
__device__ __forceinline__ block_token<INDEX> find_token(const block_shape &shape, INDEX number)
{
    block_token<INDEX> token = {0, number};
    if (ADDRESSES != ADDRESSES_GENERIC)
        return token;
    /* (The function divides even if there is only one outer entry. Otherwise the compiler would load the divisor under a
     * condition, and wait for it together with the data.) */
    if (sizeof(INDEX) == 4 || shape.tokens <= INT32_MAX)
        token.outer = (INDEX)trope_divide(&shape.inner, (uint32_t)number);
    else
        token.outer = (INDEX)(number / shape.inner_tokens);
    token.inner = (INDEX)(number - token.outer * (INDEX)shape.inner_tokens);
    return token;
}

/* Returns the address of an item's first vector. */
template <int ADDRESSES, typename STRIDE, typename INDEX>
__device__ __forceinline__ char *find_address(const block_shape &shape, const block_segment<STRIDE> &s,
                                              const block_tensor<STRIDE> &t, const block_token<INDEX> &token, uint32_t head,
                                              uint32_t in_head)
{
    char *p = t.base + (int64_t)token.inner * t.inner + (int64_t)(int32_t)in_head * t.item;
    if (ADDRESSES == ADDRESSES_GENERIC && shape.two_dimensions)
        p += (int64_t)token.outer * t.outer;
    if (ADDRESSES != ADDRESSES_SIMPLE && shape.any_is_intricate && s.is_intricate) {
        const uint32_t group = trope_divide(&s.heads_per_group, head);
        p += (int64_t)(int32_t)group * t.group;
        head -= group * s.heads_per_group.divisor;
        p += part_of_pair((int32_t)s.part_items, (int32_t)in_head) * (int64_t)t.part;
    }
    return p + (int64_t)(int32_t)head * t.head;
}

/* The dst of a token that is not rotated: its elements keep their places in a head, with any pairings. */
template <typename STRIDE> __device__ __forceinline__ block_tensor<STRIDE> unrotated_dst(const block_segment<STRIDE> &s)
{
    block_tensor<STRIDE> t = s.dst;
    t.item = s.kept_item;
    t.second = s.kept_second;
    t.part = s.kept_part;
    return t;
}

#endif
