/* The body of every rotation: a short-lived block takes a token, or a few, with all heads of all operands. Each thread has
 * an item: two vectors of a head, from load to store. Index and data loads are issued together. Then the block finds the
 * positions, makes one coefficient for each (token, pair), and rotates. CALL is described in call.cuh. */
#ifndef TROPE_FWD_CUDA_BLOCK_CUH
#define TROPE_FWD_CUDA_BLOCK_CUH

#include "core/cuda/elements.cuh"
#include "core/sincos.h"
#include "fwd/cuda/call.cuh"
#include "varlen/cuda/search.cuh"
#include "varlen/token.h"

/* ---- items ---- */

template <class CALL> constexpr int VECTOR = 16 / (int)sizeof(typename elements<CALL::DTYPE>::type);

template <class CALL> __host__ __device__ __forceinline__ uint32_t window_items(const CALL &call, int i)
{
    return (uint32_t)(call.rotary_dim(i) / 2 / VECTOR<CALL>);
}

/* The vectors of a head outside of its window, if they are written. */
template <class CALL> __host__ __device__ __forceinline__ uint32_t rest_vectors(const CALL &call, int i)
{
    return call.moves_rest(i) ? (uint32_t)((call.head_dim(i) - call.rotary_dim(i)) / VECTOR<CALL>) : 0;
}

template <class CALL> __host__ __device__ __forceinline__ uint32_t items_of_head(const CALL &call, int i)
{
    return window_items(call, i) + (rest_vectors(call, i) + 1) / 2;
}

template <class CALL> __host__ __device__ __forceinline__ uint32_t first_item(const CALL &call, int operand)
{
    uint32_t first = 0;
#pragma unroll
    for (int i = 0; i < operand; i++)
        first += (uint32_t)(call.groups(i) * call.heads_per_group(i)) * items_of_head(call, i);
    return first;
}

/* Returns get(i) of the operand that has an item. */
template <class CALL, class GET> __device__ __forceinline__ auto of_operand(const CALL &call, uint32_t item, GET get)
{
    auto value = get(0);
#pragma unroll
    for (int i = 1; i < CALL::ROOM; i++)
        if (i < call.operands())
            value = item >= first_item(call, i) ? get(i) : value;
    return value;
}

/* The two vectors of an item, as offsets in a head, in bytes. */
struct item_offsets {
    int32_t first, second;
};

/* Interleaved pairs: an item has a vector in each half of the window, so that threads access neighbouring vectors. */
template <class CALL> __host__ __device__ __forceinline__ bool cuts_halves(const CALL &call)
{
    bool can = call.interleaved_src() && call.interleaved_dst();
#pragma unroll
    for (int i = 0; i < CALL::ROOM; i++)
        can = can && (i >= call.operands() || !call.rotary_dim(i) || call.rotary_dim(i) == 2 * call.pairs());
    return can;
}

template <class CALL>
__device__ __forceinline__ item_offsets window_offsets(const CALL &call, int i, uint32_t in_head, bool interleaved)
{
    const int32_t of_part = call.rotary_dim(i) / 2 / call.parts() / VECTOR<CALL>, item = (int32_t)in_head;
    if (cuts_halves(call))
        return {call.rotary_offset(i) + item * VECTOR<CALL>, call.rotary_offset(i) + item * VECTOR<CALL> + call.pairs()};
    if (interleaved)
        return {call.rotary_offset(i) + 2 * item * VECTOR<CALL>, call.rotary_offset(i) + (2 * item + 1) * VECTOR<CALL>};
    const int32_t part = call.parts() == 1 ? 0 : item / of_part,
                  first = call.rotary_offset(i) + (item + part * of_part) * VECTOR<CALL>;
    return {first, first + of_part * VECTOR<CALL>};
}

template <class CALL> __device__ __forceinline__ item_offsets rest_offsets(const CALL &call, int i, uint32_t in_rest)
{
    const int32_t first = (int32_t)in_rest * VECTOR<CALL>, half = (int32_t)(rest_vectors(call, i) + 1) / 2 * VECTOR<CALL>,
                  second = first + half;
    return {first + (first >= call.rotary_offset(i) ? call.rotary_dim(i) : 0),
            second + (second >= call.rotary_offset(i) ? call.rotary_dim(i) : 0)};
}

/* The item of a thread. */
template <class CALL> struct call_item {
    typedef vector_pair<CALL::DTYPE> data;
    uint32_t in_head;
    bool is_there, rotates, has_second, in_place;
    item_offsets from, to; /* in a head of src, and of dst */
    const char *src;
    char *dst;
    data v;

    /* Finds the addresses of number `item` of a token, whose two dimensions are `outer` and `inner`. */
    __device__ __forceinline__ void find(const CALL &call, uint32_t item, uint32_t outer, uint32_t inner, bool exists)
    {
        const uint32_t total = first_item(call, call.operands());
        is_there = exists && (call.items_of_block() == total || item < total);
        const auto number = [&](int i) { return item - first_item(call, i); };
        const uint32_t head = of_operand(call, item, [&](int i) { return number(i) / items_of_head(call, i); });
        in_head = of_operand(call, item, [&](int i) { return number(i) % items_of_head(call, i); });
        rotates =
            of_operand(call, item, [&](int i) { return rest_vectors(call, i) == 0 || in_head < window_items(call, i); });
        const auto offsets_of = [&](int i, bool interleaved) {
            return in_head < window_items(call, i) || rest_vectors(call, i) == 0
                       ? window_offsets(call, i, in_head, interleaved)
                       : rest_offsets(call, i, in_head - window_items(call, i));
        };
        const auto offsets = [&](bool interleaved) -> item_offsets {
            constexpr int32_t BYTES = sizeof(typename data::element);
            return {of_operand(call, item, [&](int i) { return offsets_of(i, interleaved).first * BYTES; }),
                    of_operand(call, item, [&](int i) { return offsets_of(i, interleaved).second * BYTES; })};
        };
        has_second = of_operand(
            call, item, [&](int i) { return rest_vectors(call, i) % 2 == 0 || in_head + 1 < items_of_head(call, i); });
        in_place = of_operand(call, item, [&](int i) { return call.in_place(i) != 0; });
        from = offsets(call.interleaved_src());
        to = offsets(call.interleaved_dst());
        const auto address = [&](auto tensor, auto head_stride, auto group_stride) {
            char *at = of_operand(call, item, [&](int i) { return tensor(i).base; }) +
                       (int64_t)inner * of_operand(call, item, [&](int i) { return tensor(i).inner; });
            if (!call.one_entry())
                at += (int64_t)outer * of_operand(call, item, [&](int i) { return tensor(i).outer; });
            return at + of_operand(call, item, [&](int i) {
                       const uint32_t group = call.groups(i) == 1 ? 0 : head / (uint32_t)call.heads_per_group(i);
                       const int64_t in_group = (int32_t)(head - group * (uint32_t)call.heads_per_group(i));
                       return in_group * head_stride(i) + (int64_t)(int32_t)group * group_stride(i);
                   });
        };
        const call_values &values = call.values;
        src = address(
            [&](int i) { return values.src[i]; },
            [&](int i) { return call.src_head(i) == CALL_STRIDE_IS_VALUE ? values.src[i].head : call.src_head(i); },
            [&](int i) { return call.src_group(i) == CALL_STRIDE_IS_VALUE ? values.src[i].group : call.src_group(i); });
        if (all_in_place(call))
            dst = (char *)src;
        else
            dst = address(
                [&](int i) { return values.dst[i]; },
                [&](int i) { return call.dst_head(i) == CALL_STRIDE_IS_VALUE ? values.dst[i].head : call.dst_head(i); },
                [&](int i) { return call.dst_group(i) == CALL_STRIDE_IS_VALUE ? values.dst[i].group : call.dst_group(i); });
        if (!is_there) /* a thread without an item loads the first vector of a tensor: a branch would delay the loads */
            src = values.src[0].base, from = {0, 0};
    }

    static __device__ __forceinline__ bool all_in_place(const CALL &call)
    {
        bool all = true;
#pragma unroll
        for (int i = 0; i < CALL::ROOM; i++)
            all = all && (i >= call.operands() || call.in_place(i));
        return all;
    }

    __device__ __forceinline__ void load()
    {
        v.load(src + from.first, src + (has_second ? from.second : from.first));
    }

    __device__ __forceinline__ void store(item_offsets at) const
    {
        if (has_second)
            v.store(dst + at.first, dst + at.second);
        else
            v.store_first(dst + at.first);
    }
};

/* ---- coefficients ---- */

/* The number of pair e of an item. */
template <class CALL> __device__ __forceinline__ uint32_t pair_of_item(const CALL &call, uint32_t in_head, uint32_t e)
{
    constexpr uint32_t HALF = VECTOR<CALL> / 2;
    if (cuts_halves(call))
        return (in_head + e / HALF * ((uint32_t)call.pairs() / VECTOR<CALL>)) * HALF + e % HALF;
    return in_head * VECTOR<CALL> + e;
}

/* The pair at a place of a token's coefficients in shared memory: two neighbouring pairs of an item together, then the same
 * two of the next item, because the next thread reads these at the same time. */
template <class CALL> __device__ __forceinline__ uint32_t pair_at_place(const CALL &call, uint32_t place)
{
    const uint32_t items = (uint32_t)call.pairs() / VECTOR<CALL>, two = place / 2;
    return pair_of_item(call, two % items, two / items * 2 + place % 2);
}

template <class CALL> __device__ __forceinline__ int32_t plane_of_pair(const CALL &call, uint32_t pair)
{
    if (call.axes() == 1 && !call.has_planes())
        return 0;
    uint32_t word = call.axis_bits(0);
#pragma unroll
    for (uint32_t i = 1; i < CALL::AXIS_WORDS; i++)
        word = i < ((uint32_t)call.pairs() + 15) / 16 && pair / 16 == i ? call.axis_bits((int)i) : word;
    return (int32_t)(word >> (2 * (pair % 16)) & 3);
}

/* ---- positions ---- */

template <class CALL> __device__ __forceinline__ trope_position_source sequences_of(const CALL &call)
{
    const call_values &v = call.values;
    trope_position_source s = {};
    s.boundaries = v.boundaries;
    s.count = v.count;
    s.tokens = v.sequence_tokens;
    s.padding = call.padding();
    s.position_axes = 1;
    s.unpadded = call.has_unpadded() ? v.unpadded : v.boundaries;
    s.starts = call.has_starts() ? v.starts : NULL;
    s.boundaries_64 = call.boundaries_64();
    s.starts_64 = call.starts_64();
    s.stream = call.stream();
    s.cp = {1, 1, 0, 1, {0, 0}, {1, 1, 0}, 0};
    if (call.splits())
        s.cp = v.cp;
    return s;
}

/* Stands for a position beyond the table. */
#define CALL_NO_POSITION (-1)

/* Returns the row of a table for a position, or CALL_NO_POSITION. With phase steps, every position is valid. */
template <class CALL> __device__ __forceinline__ int64_t limited(const CALL &call, int64_t position)
{
    const int64_t rows = call.values.rows;
    if (call.angles() == TROPE_ANGLES_PHASE || (uint64_t)position < (uint64_t)rows)
        return position;
    return call.out_of_range() == TROPE_RANGE_POISON ? CALL_NO_POSITION : position < 0 ? 0 : rows - 1;
}

template <class CALL> __device__ __forceinline__ bool is_lost(const CALL &call, int64_t position)
{
    return call.angles() != TROPE_ANGLES_PHASE && call.positions() != CALL_FROM_TOKENS && position == CALL_NO_POSITION;
}

template <class CALL> __device__ __forceinline__ void report_bits(const CALL &call, int32_t bits)
{
    if (bits && call.values.status)
        atomicOr(call.values.status, bits);
}

/* The tokens of a block. */
template <class CALL> struct call_tokens {
    uint32_t first, count;

    __device__ __forceinline__ void split(const CALL &call, uint32_t in_block, uint32_t *outer, uint32_t *inner) const
    {
        const uint32_t number = first + in_block;
        *outer = call.one_entry() ? 0 : trope_divide(&call.values.inner, number);
        *inner = call.one_entry() ? number : number - *outer * call.values.inner.divisor;
    }
};

/* The position of one token on one axis, from its index or from ids. */
template <class CALL> struct token_position {
    uint32_t batch, token;
    raw_index raw;

    __device__ __forceinline__ void find(const CALL &call, const call_tokens<CALL> &tokens, uint32_t in_block)
    {
        uint32_t outer, inner;
        tokens.split(call, in_block, &outer, &inner);
        batch = call.batch_outermost() ? outer : inner;
        token = call.batch_outermost() ? inner : outer;
        if (call.one_entry())
            batch = 0, token = inner;
    }

    __device__ __forceinline__ void load(const CALL &call, int32_t axis)
    {
        const call_values &v = call.values;
        raw = {0, 0};
        if (call.positions() == CALL_READ)
            load_4_or_8(v.ids + (int64_t)batch * v.id_batch + (int64_t)token * v.id_token + axis * v.id_axis, call.ids_64(),
                        &raw.low, &raw.high);
    }

    __device__ __forceinline__ int64_t of(const CALL &call) const
    {
        const call_token_positions &p = call.values.from_tokens;
        const uint32_t own = token * p.step + p.first + (token < p.second_run ? 0 : p.gap);
        if (call.positions() != CALL_READ)
            return own;
        return limited(call,
                       call.has_starts() ? trope_add_position(raw.value(call.ids_64()), own) : raw.value(call.ids_64()));
    }
};

/* Returns the position of a token after a search. Without start positions, it fits into 32 bits. */
template <class CALL>
__device__ __forceinline__ int64_t position_in(const CALL &call, const int64_t *positions, uint32_t in_block)
{
    if (call.has_starts())
        return positions[in_block];
    const int32_t narrow = *(const int32_t *)(positions + in_block);
    return call.angles() == TROPE_ANGLES_PHASE ? (int64_t)(uint32_t)narrow : narrow; /* CALL_NO_POSITION is negative */
}

/* ---- angles ---- */

static __device__ __noinline__ trope_quarter_turns reduce_large(float angle)
{
    return trope_reduce_phase(trope_phase_of_large_angle(angle));
}

__device__ __forceinline__ void sincos_of_angle(float angle, float *sine, float *cosine)
{
    trope_quarter_turns turns = trope_reduce_angle(angle);
    if (__builtin_expect(trope_is_large_angle(angle), 0))
        turns = reduce_large(angle);
    trope_sincos_quarter(turns, sine, cosine);
}

/* The coefficients of one pair. */
struct call_couple {
    float cosine, sine;
};

template <class CALL>
__device__ __forceinline__ call_couple finished(const CALL &call, float cosine, float sine, bool is_nan)
{
    cosine = trope_mul(cosine, call.values.cosine_scale);
    sine = trope_mul(sine, call.values.sine_scale);
    if (is_nan)
        cosine = sine = NAN;
    if (call.rounding() == TROPE_ROUND_NATIVE)
        cosine = round_to<CALL::DTYPE>(cosine), sine = round_to<CALL::DTYPE>(sine);
    return {cosine, sine};
}

/* Returns an entry of a table, which is in the low bits. */
template <class CALL> __device__ __forceinline__ float entry_value(const CALL &call, uint32_t bits)
{
    return call.table_dtype() == TROPE_F32    ? trope_float_from_bits(bits)
           : call.table_dtype() == TROPE_BF16 ? trope_bf16_to_f32((uint16_t)bits)
                                              : trope_f16_to_f32((uint16_t)bits);
}

template <class CALL> __device__ __forceinline__ int32_t entry_bytes(const CALL &call)
{
    return call.table_dtype() == TROPE_F32 ? 4 : 2;
}

/* Returns the column of the first (0) or the second (1) element of a pair. */
template <class CALL> __device__ __forceinline__ int32_t column_of(const CALL &call, int32_t pair, int which)
{
    const int32_t part_pairs = call.pairs() / call.parts(), part = call.parts() == 1 ? 0 : pair / part_pairs;
    return !call.per_element() ? pair : call.interleaved_columns() ? 2 * pair + which : pair + (part + which) * part_pairs;
}

/* Returns the address of a row of a table, for the plane of a pair. */
template <class CALL>
__device__ __forceinline__ const char *row_of_table(const CALL &call, int table, uint32_t batch, int64_t position,
                                                    uint32_t pair)
{
    const call_values &v = call.values;
    const char *row = v.table[table] + (int64_t)(int32_t)(position == CALL_NO_POSITION ? 0 : position) * v.table_row;
    if (!call.one_entry())
        row += (int64_t)batch * v.table_batch;
    if (call.has_planes())
        row += plane_of_pair(call, pair) * v.table_axis;
    return row;
}

/* Makes one coefficient of the block in shared memory. */
template <class CALL> struct shared_maker {
    uint32_t number; /* of the coefficient in the block */
    uint32_t pair;
    token_position<CALL> at;
    uint32_t entry[2][2]; /* angles, or cosines and sines, of the two elements of the pair */
    uint64_t step;

    __device__ __forceinline__ void find(const CALL &call, const call_tokens<CALL> &tokens, uint32_t n)
    {
        number = n;
        const uint32_t in_block = n / (uint32_t)call.pairs();
        pair = pair_at_place(call, n - in_block * (uint32_t)call.pairs());
        at.find(call, tokens, min(in_block, tokens.count - 1));
    }

    __device__ __forceinline__ void load_position(const CALL &call)
    {
        at.load(call, call.axes() == 1 ? 0 : plane_of_pair(call, pair));
    }

    __device__ __forceinline__ void load_angle(const CALL &call, const uint64_t *steps, int64_t position)
    {
        if (call.angles() == TROPE_ANGLES_PHASE) {
            load_parameter(steps + pair, &step);
            return;
        }
#pragma unroll
        for (int table = 0; table < 2; table++) {
            if (table && call.angles() == TROPE_ANGLES_FREQS)
                continue;
            const char *const row = row_of_table(call, table, at.batch, position, pair);
#pragma unroll
            for (int which = 0; which < 2; which++)
                if (!which || call.per_element())
                    load_4_or_2(row + column_of(call, (int32_t)pair, which) * call.column() * entry_bytes(call),
                                entry_bytes(call) == 2, &entry[table][which]);
        }
    }

    __device__ __forceinline__ call_couple make_one(const CALL &call, int64_t position, int which) const
    {
        float cosine, sine;
        if (call.angles() == TROPE_ANGLES_PHASE)
            trope_sincos_quarter(trope_reduce_phase(trope_phase(position, step)), &sine, &cosine);
        else if (call.angles() == TROPE_ANGLES_FREQS)
            sincos_of_angle(entry_value(call, entry[0][which]), &sine, &cosine);
        else
            cosine = entry_value(call, entry[0][which]), sine = entry_value(call, entry[1][which]);
        return finished(call, cosine, sine, is_lost(call, position));
    }

    /* Returns whether the elements of the pair have different coefficients. */
    __device__ __forceinline__ bool make(const CALL &call, int64_t position, call_couple *couples) const
    {
        const call_couple first = make_one(call, position, 0);
        couples[number] = first;
        if (!call.per_element() || call.angles() == TROPE_ANGLES_PHASE)
            return false;
        const bool differ =
            entry[0][0] != entry[0][1] || (call.angles() == TROPE_ANGLES_TABLE && entry[1][0] != entry[1][1]);
        call_couple second = first;
        if (differ)
            second = make_one(call, position, 1);
        couples[number + (uint32_t)(call.tokens_of_block() * call.pairs())] = second;
        return differ;
    }
};

/* cos and sin of an item's pairs, as they are in memory. */
template <class CALL> struct loaded_couples {
    enum { V = VECTOR<CALL> };
    uint32_t words[2][2][V]; /* [cos, sin][element of the pair] */

    template <int BYTES> static __device__ __forceinline__ void load_run(const char *from, uint32_t *to)
    {
        if constexpr (BYTES >= 16) {
#pragma unroll
            for (int i = 0; i < BYTES / 16; i++)
                load_16(from + 16 * i, to + 4 * i);
        } else
            load_8(from, to);
    }

    __device__ __forceinline__ void load(const CALL &call, uint32_t batch, int64_t position, uint32_t in_head)
    {
        const uint32_t pair = pair_of_item(call, in_head, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int table = i / 2, which = i % 2;
            if (which && !call.per_element())
                continue;
            const char *const from = row_of_table(call, table, batch, position, pair) +
                                     column_of(call, (int32_t)pair, which) * entry_bytes(call);
            if (call.table_dtype() == TROPE_F32)
                load_run<4 * V>(from, words[table][which]);
            else
                load_run<2 * V>(from, words[table][which]);
        }
    }

    __device__ __forceinline__ float entry(const CALL &call, int table, int which, int e) const
    {
        const uint32_t *const w = words[table][call.per_element() ? which : 0];
        return entry_value(call, call.table_dtype() == TROPE_F32 ? w[e] : w[e / 2] >> 16 * (e % 2) & 0xffff);
    }
};

/* ---- the rotation of an item ---- */

/* The coefficients of two neighbouring pairs of an item. */
struct two_coefficients {
    trope_coefficients of[2];
};

/* NATIVE in f16 and bf16 rounds every operation to the dtype, so it may use the instructions for two elements at once: a
 * product of two elements is exact in fp32 (or so small that both become 0), and a sum that is rounded to fp32 first has the same bits (fp32 has at least
 * 2 p + 2 digits: S. Figueroa, "When is double rounding innocuous?", ACM SIGNUM Newsletter 30(3), 1995). */
template <int DTYPE> __device__ __forceinline__ uint32_t multiply_two(uint32_t a, uint32_t b)
{
    return DTYPE == TROPE_F16 ? multiply_two_f16(a, b) : multiply_two_bf16(a, b);
}

template <int DTYPE> __device__ __forceinline__ uint32_t add_two(uint32_t a, uint32_t b)
{
    return DTYPE == TROPE_F16 ? add_two_f16(a, b) : add_two_bf16(a, b);
}

/* The same as two_coefficients, in elements. */
struct two_in_dtype {
    uint32_t c1, s1, c2, s2;
};

template <class CALL> constexpr bool IS_16_BIT = sizeof(typename elements<CALL::DTYPE>::type) == 2;

template <class CALL> __device__ __forceinline__ two_in_dtype in_dtype(const two_coefficients &c)
{
    return {pack_elements<CALL::DTYPE>(c.of[0].c1, c.of[1].c1), pack_elements<CALL::DTYPE>(c.of[0].s1, c.of[1].s1),
            pack_elements<CALL::DTYPE>(c.of[0].c2, c.of[1].c2), pack_elements<CALL::DTYPE>(c.of[0].s2, c.of[1].s2)};
}

/* Rotates an item. get(e) returns the coefficients of pairs e and e + 1, and get_in_dtype(e) in elements. */
template <class CALL, class GET, class GET_IN_DTYPE>
__device__ __forceinline__ void rotate_item(const CALL &call, call_item<CALL> *item, GET get, GET_IN_DTYPE get_in_dtype)
{
    typedef typename call_item<CALL>::data data;
    data &v = item->v;
    if (call.interleaved_src())
        v.separate();
#pragma unroll
    for (int e = 0; e < VECTOR<CALL>; e += 2) {
        if constexpr (IS_16_BIT<CALL>) {
            if (call.rounding() == TROPE_ROUND_NATIVE) {
                const two_in_dtype c = get_in_dtype(e);
                const uint32_t x1 = v.words[0][e / 2], x2 = v.words[1][e / 2];
                v.words[0][e / 2] = add_two<CALL::DTYPE>(multiply_two<CALL::DTYPE>(x1, c.c1),
                                                         multiply_two<CALL::DTYPE>(x2, c.s1 ^ 0x80008000u));
                v.words[1][e / 2] =
                    add_two<CALL::DTYPE>(multiply_two<CALL::DTYPE>(x2, c.c2), multiply_two<CALL::DTYPE>(x1, c.s2));
                continue;
            }
        }
        const two_coefficients c = get(e);
        float y[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const trope_pair x = {(float)v.template of_pair<false>(e + i, 0), (float)v.template of_pair<false>(e + i, 1)},
                             r = rotate_pair<CALL::DTYPE>(call.rounding(), x, c.of[i]);
            y[0][i] = r.first;
            y[1][i] = r.second;
        }
        v.template set_pairs<2, false>(e, y);
    }
    if (call.interleaved_dst())
        v.join();
    item->store(item->to);
}

/* Finishes an item of a token that is not rotated, or that does not rotate. */
template <class CALL> __device__ __forceinline__ void finish_item(const CALL &call, call_item<CALL> *item, int32_t action)
{
    const bool fills =
        action == TROPE_TOKEN_ZERO || action == TROPE_TOKEN_POISON || (action == TROPE_TOKEN_INVALID && item->rotates);
    if (fills)
        item->v.fill(action == TROPE_TOKEN_ZERO ? (typename call_item<CALL>::data::element)0
                                                : from_real<CALL::DTYPE>((float)NAN));
    else if (item->in_place)
        return;
    item->store(item->rotates && !fills ? item->from : item->to); /* copied elements keep their places in a head */
}

/* ---- the block ---- */

extern __shared__ __align__(16) char shared_memory[];

/* The parts of a block's shared memory, as offsets. */
struct block_layout {
    uint32_t positions, actions, end;
};

template <class CALL> __host__ __device__ __forceinline__ block_layout layout_of(const CALL &call)
{
    const uint32_t tokens = (uint32_t)call.tokens_of_block(),
                   couples =
                       call.coefficients() == CALL_SHARED
                           ? tokens * (uint32_t)call.pairs() * (call.per_element() ? 2 : 1) * (uint32_t)sizeof(call_couple)
                           : 0,
                   of_searched = call.positions() == CALL_SEARCHED ? tokens : 0;
    return {couples, couples + of_searched * (uint32_t)sizeof(int64_t),
            couples + of_searched * (uint32_t)(sizeof(int64_t) + sizeof(int32_t))};
}

#define SEARCHING_LANES 32 /* of the warp that searches, which is the first one */

/* Returns the first thread that makes coefficients: the first one after the searching warp, if the others are enough. */
template <class CALL> __host__ __device__ __forceinline__ uint32_t first_maker_of(const CALL &call)
{
    const int32_t others = call.items_of_block() * call.tokens_of_block() - SEARCHING_LANES;
    return call.positions() == CALL_SEARCHED && others >= call.tokens_of_block() * call.pairs() ? SEARCHING_LANES : 0;
}

/* Returns the number of coefficients that a thread makes. */
template <class CALL> __host__ __device__ __forceinline__ uint32_t made_by_thread(const CALL &call)
{
    const uint32_t makers = (uint32_t)(call.items_of_block() * call.tokens_of_block()) - first_maker_of(call);
    return call.coefficients() == CALL_SHARED ? ((uint32_t)(call.tokens_of_block() * call.pairs()) + makers - 1) / makers
                                              : 1;
}

/* What the searching warp finds out about a token, and decides after the barrier that makes the position known. */
struct searched_token {
    narrow_bounds bounds;
    bool is_padding, is_gap, is_lost;
};

template <class CALL>
__device__ __forceinline__ void take_position(const CALL &call, const trope_position_source &s, const found_bounds &found,
                                              int32_t token, int64_t *position, searched_token *state)
{
    const narrow_span span = narrow_span_of_bounds(&s, found.before, found.bounds, found.start);
    const int32_t index = narrow_index_in_sequence(&s, &span, token);
    *position = limited(call, s.starts ? trope_add_position(span.first, index) : span.first + index);
    state->bounds = found.bounds;
    state->is_padding = narrow_is_padding(&span, index);
    state->is_gap = narrow_is_gap(&s, found.before);
    state->is_lost = is_lost(call, *position);
}

template <class CALL>
__device__ __forceinline__ int32_t decide_action(const CALL &call, const trope_position_source &s,
                                                 const searched_token &state)
{
    const bool is_valid = state.is_gap || narrow_check_bounds(&s, state.bounds) == TROPE_BOUNDS_VALID;
    const int32_t of_padding = trope_action_of_padding(&s), action = !is_valid          ? TROPE_TOKEN_INVALID
                                                                     : state.is_padding ? of_padding
                                                                                        : (int32_t)TROPE_TOKEN_ROTATE;
    report_bits(call, (state.is_padding && of_padding == TROPE_TOKEN_POISON ? TROPE_STATUS_PADDING : 0) |
                          (state.is_lost && action == TROPE_TOKEN_ROTATE ? TROPE_STATUS_POSITION : 0));
    return action;
}

/* Rotates an item by coefficients in shared memory. `own`: the elements of a pair may have different ones. */
template <class CALL>
__device__ __forceinline__ void rotate_shared(const CALL &call, call_item<CALL> *item, const call_couple *couples, bool own)
{
    const uint32_t items = (uint32_t)call.pairs() / VECTOR<CALL>,
                   second_at = (uint32_t)(call.tokens_of_block() * call.pairs());
    const auto get = [&](int e) -> two_coefficients {
        struct alignas(16) two {
            call_couple of[2];
        };
        const call_couple *const from = couples + ((uint32_t)e / 2 * items + item->in_head) * 2;
        const two first = *(const two *)from;
        two second = first;
        if (call.per_element() && own)
            second = *(const two *)(from + second_at);
        const bool swap = call.swap_sines() && call.per_element() && own;
        two_coefficients c;
#pragma unroll
        for (int i = 0; i < 2; i++)
            c.of[i] = {first.of[i].cosine, swap ? second.of[i].sine : first.of[i].sine, second.of[i].cosine,
                       swap ? first.of[i].sine : second.of[i].sine};
        return c;
    };
    rotate_item(call, item, get, [&](int e) { return in_dtype<CALL>(get(e)); });
}

/* Rotates an item by coefficients that the thread has loaded. */
template <class CALL>
__device__ __forceinline__ void rotate_loaded(const CALL &call, call_item<CALL> *item, const loaded_couples<CALL> &loaded,
                                              bool is_nan)
{
    const auto get = [&](int e) -> two_coefficients {
        two_coefficients c;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const call_couple first =
                finished(call, loaded.entry(call, 0, 0, e + i), loaded.entry(call, 1, 0, e + i), is_nan);
            call_couple second = first;
            if (call.per_element())
                second = finished(call, loaded.entry(call, 0, 1, e + i), loaded.entry(call, 1, 1, e + i), is_nan);
            const bool swap = call.swap_sines() && call.per_element();
            c.of[i] = {first.cosine, swap ? second.sine : first.sine, second.cosine, swap ? first.sine : second.sine};
        }
        return c;
    };
    const auto get_in_dtype = [&](int e) -> two_in_dtype {
        if (call.table_dtype() != CALL::DTYPE || !call.unit_scale())
            return in_dtype<CALL>(get(e));
        const uint32_t nan = is_nan ? 0x7fff7fffu : 0,
                       sign = trope_float_bits(call.values.sine_scale) >> 31 ? 0x80008000u : 0;
        const int w = e / 2, second = call.per_element() ? 1 : 0, first_sine = call.swap_sines() ? second : 0;
        return {loaded.words[0][0][w] | nan, (loaded.words[1][first_sine][w] ^ sign) | nan,
                loaded.words[0][second][w] | nan, (loaded.words[1][second - first_sine][w] ^ sign) | nan};
    };
    rotate_item(call, item, get, get_in_dtype);
}

/* The kernel of a rotation. */
template <class CALL> __device__ __forceinline__ void rotate_block(const CALL &call, const uint64_t *steps)
{
    const uint32_t thread = threadIdx.y * (uint32_t)call.items_of_block() + threadIdx.x, in_block = threadIdx.y,
                   threads = (uint32_t)(call.items_of_block() * call.tokens_of_block());
    const bool searches = call.positions() == CALL_SEARCHED, from_tokens = call.positions() == CALL_FROM_TOKENS,
               shares = call.coefficients() == CALL_SHARED,
               loads_early = from_tokens || call.angles() == TROPE_ANGLES_PHASE; /* angles, with the data */
    const block_layout layout = layout_of(call);
    call_couple *const couples = (call_couple *)shared_memory;
    int64_t *const positions = (int64_t *)(shared_memory + layout.positions);
    int32_t *const actions = (int32_t *)(shared_memory + layout.actions);
    const trope_position_source sequences = sequences_of(call);

    call_tokens<CALL> tokens;
    tokens.first = blockIdx.x * (uint32_t)call.tokens_of_block();
    tokens.count = call.tokens_of_block() == 1
                       ? 1
                       : min((uint32_t)call.tokens_of_block(), (uint32_t)call.values.tokens - tokens.first);
    uint32_t outer, inner;
    tokens.split(call, in_block, &outer, &inner);
    call_item<CALL> item;
    item.find(call, blockIdx.y * (uint32_t)call.items_of_block() + threadIdx.x, outer, inner, in_block < tokens.count);

    constexpr uint32_t MADE = CALL::MADE;
    const uint32_t first_maker = first_maker_of(call), makers = threads - first_maker,
                   end = tokens.count * (uint32_t)call.pairs();
    shared_maker<CALL> maker[MADE];
    token_position<CALL> own;
    loaded_couples<CALL> loaded;
    boundary_round round;
    if (shares) {
#pragma unroll
        for (uint32_t i = 0; i < MADE; i++)
            maker[i].find(call, tokens, thread - first_maker + i * makers);
    } else {
        own.find(call, tokens, min(in_block, tokens.count - 1));
    }
    await_previous();
    if (searches)
        round.begin(sequences, thread < SEARCHING_LANES);
    if (shares) {
#pragma unroll
        for (uint32_t i = 0; i < MADE; i++)
            if (maker[i].number < end) {
                if (!searches)
                    maker[i].load_position(call);
                if (loads_early)
                    maker[i].load_angle(call, steps, from_tokens ? maker[i].at.of(call) : 0);
            }
    } else if (!searches) {
        own.load(call, call.axes() == 1 ? 0 : plane_of_pair(call, pair_of_item(call, item.rotates ? item.in_head : 0, 0)));
        if (from_tokens)
            loaded.load(call, own.batch, own.of(call), item.rotates ? item.in_head : 0);
    }
    item.load();
    admit_next();

    searched_token state = {{0, 0, 0, 0}, false, true, false};
    if (searches) {
        if (thread < SEARCHING_LANES)
            search_boundaries(sequences, round, (int32_t)tokens.first, (int32_t)tokens.count, (int32_t)thread,
                              [&](const found_bounds &found) {
                                  take_position(call, sequences, found, (int32_t)(tokens.first + thread),
                                                positions + thread, &state);
                              });
        __syncthreads();
    }
    bool differ = false, is_missing = false;
    if (shares) {
        int64_t position[MADE];
#pragma unroll
        for (uint32_t i = 0; i < MADE; i++)
            if (maker[i].number < end) {
                position[i] = searches ? position_in(call, positions, maker[i].number / (uint32_t)call.pairs())
                                       : maker[i].at.of(call);
                if (!loads_early)
                    maker[i].load_angle(call, steps, position[i]);
            }
#pragma unroll
        for (uint32_t i = 0; i < MADE; i++)
            if (maker[i].number < end) {
                differ = maker[i].make(call, position[i], couples) || differ;
                is_missing = is_missing || is_lost(call, position[i]);
            }
    }
    if (searches && thread < tokens.count)
        actions[thread] = decide_action(call, sequences, state);
    if (shares && call.per_element())
        differ = __syncthreads_or(differ);
    else if (searches || shares)
        __syncthreads();
    const int32_t action = searches ? actions[min(in_block, tokens.count - 1)] : (int32_t)TROPE_TOKEN_ROTATE;
    if (item.is_there) {
        if (!item.rotates || action != TROPE_TOKEN_ROTATE) {
            finish_item(call, &item, action);
        } else if (shares) {
            rotate_shared(call, &item, couples + in_block * (uint32_t)call.pairs(), differ);
        } else {
            const int64_t position = searches ? position_in(call, positions, in_block) : own.of(call);
            if (!from_tokens)
                loaded.load(call, own.batch, position, item.in_head);
            is_missing = is_lost(call, position);
            rotate_loaded(call, &item, loaded, is_missing);
        }
    }
    if (call.positions() == CALL_READ)
        report_bits(call, is_missing ? TROPE_STATUS_POSITION : 0);
    if (searches)
        check_sequences<false>(sequences, call.values.status);
}

#endif
