#include "support/reference.h"

#include <math.h>
#include <stdlib.h>

#include "support/number.h"
#include "support/tensor.h"

/* 113 bits of significand, for position * inv_freq: 63 and 53 bits. */
#ifdef __SIZEOF_FLOAT128__
__extension__ typedef __float128 wide;
#else
typedef long double wide;
#endif

/* ---- Positions ---- */

static int64_t index_at(const void *array, int32_t dtype, int64_t i)
{
    return dtype == TROPE_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static int64_t cp_size(const trope_args *args)
{
    return args->cp_size ? args->cp_size : 1;
}

/* Where a boundary of the packed stream is among the tokens of this rank. */
static int64_t boundary_here(const trope_args *args, int64_t global)
{
    if (cp_size(args) > 1 && args->cp_layout == TROPE_CP_FLAT)
        return global - args->cp_rank * args->tokens;
    return global / cp_size(args);
}

/* The place in its sequence of the i-th token that this rank has of it, when each rank has `local` of them. */
static int64_t place_in_sequence(const trope_args *args, int64_t local, int64_t i)
{
    const int64_t size = cp_size(args), rank = args->cp_rank, chunk = local / 2;
    if (size == 1)
        return i;
    switch (args->cp_layout) {
    case TROPE_CP_CONTIGUOUS: /* one chunk per rank */
        return rank * local + i;
    case TROPE_CP_ZIGZAG: /* two chunks per rank: one counted from the front and one from the back */
        return i < chunk ? rank * chunk + i : (2 * size - 1 - rank) * chunk + (i - chunk);
    case TROPE_CP_STRIPED: /* dealt out one by one */
        return i * size + rank;
    default:
        return i;
    }
}

/* The positions of a token by its index; ids replace them. */
static void fill_positions(const trope_args *args, int64_t batch, int64_t token, int64_t index, reference_place *place)
{
    int64_t stride[3];
    tensor_ids_strides(args, stride);
    for (int axis = 0; axis < TROPE_MAX_AXES; axis++) {
        const int64_t row = args->position_axes > 1 ? axis : 0;
        place->position[axis] = index;
        if (args->position_ids && row < (args->position_axes ? args->position_axes : 1))
            place->position[axis] =
                index_at(args->position_ids, args->position_dtype, row * stride[0] + batch * stride[1] + token * stride[2]);
    }
}

static reference_place find_dense(const trope_args *args, int64_t batch, int64_t token)
{
    reference_place place = {.sequence = batch};
    int64_t index = place_in_sequence(args, args->tokens, token);
    if (cp_size(args) > 1 && args->cp_layout == TROPE_CP_FLAT)
        index = args->cp_rank * args->tokens + token;
    if (args->start_positions)
        index += index_at(args->start_positions, args->position_dtype, batch);
    fill_positions(args, batch, token, index, &place);
    return place;
}

/* A token between boundaries `begin` and `end` of the sequence. */
static reference_place find_in_sequence(const trope_args *args, int64_t sequence, int64_t begin, int64_t end, int64_t token)
{
    const int32_t dtype = args->cu_seqlens_dtype;
    const int64_t first = index_at(args->cu_seqlens, dtype, sequence);
    const int64_t length = index_at(args->cu_seqlens, dtype, sequence + 1) - first;
    reference_place place = {.sequence = sequence};
    int64_t index = place_in_sequence(args, end - begin, token - begin);
    if (index >= length) {
        place.sequence = -1;
        place.is_padding = 1;
    }
    if (args->start_positions)
        index += index_at(args->start_positions, args->position_dtype, sequence);
    if (args->stream_positions)
        index += first;
    fill_positions(args, 0, token, index, &place);
    return place;
}

reference_place reference_find(const trope_args *args, int64_t batch, int64_t token)
{
    if (!args->cu_seqlens)
        return find_dense(args, batch, token);
    const void *stored = args->cu_seqlens_padded ? args->cu_seqlens_padded : args->cu_seqlens;
    int64_t begin = boundary_here(args, index_at(stored, args->cu_seqlens_dtype, 0));
    reference_place gap = {.sequence = -1, .is_padding = 1};
    if (token < begin) {
        fill_positions(args, 0, token, token - boundary_here(args, 0), &gap);
        return gap;
    }
    for (int64_t sequence = 0; sequence < args->sequences; sequence++) {
        const int64_t end = boundary_here(args, index_at(stored, args->cu_seqlens_dtype, sequence + 1));
        if (token >= begin && token < end)
            return find_in_sequence(args, sequence, begin, end, token);
        begin = end;
    }
    fill_positions(args, 0, token, token - begin, &gap);
    return gap;
}

/* ---- Pairs ---- */

static int part_count(const trope_args *args)
{
    return args->parts ? args->parts : 1;
}

static int32_t pairing_out(const trope_args *args)
{
    return args->pairing_out ? args->pairing_out : args->pairing;
}

int reference_pairs(const trope_args *args)
{
    int pairs = 0;
    for (int i = 0; i < args->operand_count; i++)
        pairs = args->operands[i].rotary_dim / 2 > pairs ? args->operands[i].rotary_dim / 2 : pairs;
    return pairs;
}

/* The elements of a pair in a window of `dim` elements that is cut into equal parts. */
static void pair_elements(const trope_args *args, int32_t pairing, int dim, int pair, int element[2])
{
    const int in_part = dim / 2 / part_count(args), part = pair / in_part, i = pair % in_part;
    const int first = part * 2 * in_part;
    element[0] = pairing == TROPE_PAIRING_HALF ? first + i : first + 2 * i;
    element[1] = pairing == TROPE_PAIRING_HALF ? first + i + in_part : first + 2 * i + 1;
}

/* The axis that is said to drive a pair. */
static int axis_of_pair(const trope_args *args, int pair)
{
    return args->pair_axis ? args->pair_axis[pair] : pair / (reference_pairs(args) / part_count(args));
}

int reference_axes(const trope_args *args)
{
    int axes = 1;
    for (int pair = 0; pair < reference_pairs(args); pair++)
        axes = axis_of_pair(args, pair) >= axes ? axis_of_pair(args, pair) + 1 : axes;
    return axes;
}

int reference_planes(const trope_args *args)
{
    return args->position_axes > reference_axes(args) ? args->position_axes : reference_axes(args);
}

/* ---- Angles ---- */

/* What turns one pair at one token. */
typedef struct turn {
    long double cosine[2], sine[2]; /* of the angles of its first and of its second element */
    double error;                   /* the most by which the library's may differ */
    int64_t position, row;
    int axis;
    int is_poisoned;
} turn;

static int is_double(const trope_args *args)
{
    return args->dtype == TROPE_F64;
}

/* Columns of the table. */
static int column_count(const trope_args *args)
{
    return reference_pairs(args) * (args->angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2);
}

/* The columns that hold the angles of a pair: one twice, or two. */
static void columns_of_pair(const trope_args *args, int pair, int column[2])
{
    const int32_t order = args->angle_columns == TROPE_COLUMNS_HALF ? TROPE_PAIRING_HALF : TROPE_PAIRING_INTERLEAVED;
    if (args->angle_columns == TROPE_COLUMNS_PAIR)
        column[0] = column[1] = pair;
    else
        pair_elements(args, order, column_count(args), pair, column);
}

static double angle_at(const trope_args *args, const void *table, int64_t batch, const turn *t, int column)
{
    int64_t stride[4];
    tensor_table_strides(args, args->angle_layout, args->angle_stride, column_count(args), stride);
    const int64_t i = t->axis * stride[0] + batch * stride[1] + t->row * stride[2] + column * stride[3];
    return number_load(args->angle_dtype, (const char *)table + i * (int64_t)number_size(args->angle_dtype));
}

static wide two_pi(void)
{
    return (wide)0x1.921fb54442d18p+2 + (wide)0x1.1a62633145c07p-52 - (wide)0x1.f1976b7ed8fbcp-108;
}

/* position * inv_freq modulo one turn, in radians. */
static long double phase(int64_t position, double inv_freq)
{
    const wide turns = (wide)position * (wide)inv_freq / two_pi();
    return (long double)((turns - (wide)(int64_t)turns) * two_pi());
}

/* The same where a position turns by `step` / 2^64, of which whole turns are nothing. */
static long double phase_of_steps(int64_t position, uint64_t step)
{
    return (long double)((wide)((uint64_t)position * step) / (wide)0x1p64 * two_pi());
}

static void read_angles(const trope_args *args, int64_t batch, int pair, turn *t)
{
    int column[2];
    columns_of_pair(args, pair, column);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && column[1] == column[0]) {
            t->cosine[1] = t->cosine[0];
            t->sine[1] = t->sine[0];
        } else if (args->freqs) {
            const double angle = angle_at(args, args->freqs, batch, t, column[i]);
            t->cosine[i] = cosl(angle);
            t->sine[i] = sinl(angle);
        } else {
            t->cosine[i] = angle_at(args, args->cos, batch, t, column[i]);
            t->sine[i] = angle_at(args, args->sin, batch, t, column[i]);
        }
    }
}

static turn turn_by_phase(long double angle, turn t)
{
    t.cosine[0] = t.cosine[1] = cosl(angle);
    t.sine[0] = t.sine[1] = sinl(angle);
    return t;
}

static turn find_turn(const trope_args *args, int64_t batch, const reference_place *place, int pair)
{
    const int axis = axis_of_pair(args, pair);
    turn t = {.axis = axis, .position = place->position[axis]};
    t.error = args->cos ? 0 : is_double(args) ? 1e-15 : 1.2e-7;
    if (args->phase_step)
        return turn_by_phase(phase_of_steps(t.position, args->phase_step[pair]), t);
    if (args->inv_freq) {
        /* The phase per position is rounded to 2^-64 turns. */
        t.error += fabs((double)t.position) * 0x1p-65 * 6.2832;
        return turn_by_phase(phase(t.position, args->inv_freq[pair]), t);
    }
    t.row = t.position;
    if (t.row < 0 || t.row >= args->angle_rows) {
        t.is_poisoned = args->out_of_range == TROPE_RANGE_POISON;
        t.row = t.row < 0 ? 0 : args->angle_rows - 1;
    }
    read_angles(args, batch, pair, &t);
    return t;
}

/* ---- The rotation ---- */

static double unit(const trope_args *args)
{
    return is_double(args) ? 0x1p-53 : 0x1p-24;
}

/* mscale as the arithmetic has it. */
static double scale(const trope_args *args)
{
    const double m = args->mscale != 0 ? args->mscale : 1;
    return is_double(args) ? m : (double)(float)m;
}

/* One product of the rotation: an element of the source, a coefficient and how far the library's may be from it. */
typedef struct term {
    double x;
    long double coefficient;
    double error;
} term;

static reference_element a_number(long double value, double tolerance)
{
    return (reference_element){.value = value, .tolerance = tolerance, .kind = REFERENCE_NUMBER};
}

/* In the arithmetic, before the store: one product rounded, the other fused with the sum. */
static reference_element fused(const trope_args *args, term own, term product)
{
    const long double value = own.x * own.coefficient + product.x * product.coefficient;
    double tolerance = fabs(own.x) * own.error + fabs(product.x) * product.error;
    tolerance += unit(args) * (double)fabsl(product.x * product.coefficient);
    if (args->rounding != TROPE_ROUND_ONCE)
        tolerance += unit(args) * (double)fabsl(own.x * own.coefficient);
    tolerance += number_half_ulp(is_double(args) ? TROPE_F64 : TROPE_F32, fabs((double)value) + tolerance);
    return a_number(value, tolerance);
}

static double rounded_product(int32_t dtype, term t, double sign)
{
    return number_round(dtype, t.x * number_round(dtype, (double)t.coefficient + sign * t.error));
}

/* Each operation rounded to this dtype; between the least and the greatest coefficients. */
static reference_element unfused(int32_t dtype, term a, term b)
{
    double least = INFINITY, greatest = -INFINITY;
    for (int i = 0; i < 4; i++) {
        const double sum = rounded_product(dtype, a, i & 1 ? 1 : -1) + rounded_product(dtype, b, i & 2 ? 1 : -1);
        const double y = number_round(dtype, sum);
        least = y < least ? y : least;
        greatest = y > greatest ? y : greatest;
    }
    const double middle = (least + greatest) / 2;
    return a_number(middle, greatest - middle);
}

static void rotate_pair(const trope_args *args, int backward, const turn *t, const double x[2], reference_element y[2])
{
    const long double m = scale(args), sign = args->inverse ? -1 : 1;
    long double matrix[2][2] = {{m * t->cosine[0], -m * sign * t->sine[0]}, {m * sign * t->sine[1], m * t->cosine[1]}};
    if (backward) { /* the transpose */
        const long double corner = matrix[0][1];
        matrix[0][1] = matrix[1][0];
        matrix[1][0] = corner;
    }
    for (int i = 0; i < 2; i++) {
        const int other = 1 - i;
        term own = {.x = x[i], .coefficient = matrix[i][i]}, product = {.x = x[other], .coefficient = matrix[i][other]};
        const double rounding = m != 1 ? unit(args) : 0;
        own.error = (double)(fabsl(m) * t->error + rounding * fabsl(own.coefficient));
        product.error = (double)(fabsl(m) * t->error + rounding * fabsl(product.coefficient));
        if (args->rounding == TROPE_ROUND_ONCE || is_double(args))
            y[i] = fused(args, own, product);
        else
            y[i] = unfused(args->rounding == TROPE_ROUND_NATIVE ? args->dtype : TROPE_F32, own, product);
        if (t->is_poisoned)
            y[i].kind = REFERENCE_NAN;
    }
}

/* ---- Sums and stores ---- */

/* What is between the least and the greatest number is, rounded, between those rounded. */
static void round_to_dtype(const trope_args *args, reference_element *y)
{
    if (args->dtype == TROPE_F32 || is_double(args) || y->kind != REFERENCE_NUMBER)
        return;
    const double wider = y->tolerance * (1 + 1e-9), value = (double)y->value;
    const double least = number_round(args->dtype, value - wider), greatest = number_round(args->dtype, value + wider);
    y->value = (least + greatest) / 2;
    y->tolerance = (greatest - least) / 2;
}

static void accumulate(const trope_args *args, double before, reference_element *y)
{
    if (args->rounding == TROPE_ROUND_NATIVE)
        round_to_dtype(args, y);
    y->value += before;
    y->tolerance += unit(args) * (fabs((double)y->value) + y->tolerance) * (1 + 1e-4) +
                    number_half_ulp(is_double(args) ? TROPE_F64 : TROPE_F32, 0);
    y->kind = y->kind == REFERENCE_NAN ? REFERENCE_NAN : REFERENCE_NUMBER;
}

/* ---- The call ---- */

typedef struct walk {
    const trope_args *args;
    int backward;
    int64_t batch, token;
    reference_place place;
    turn turns[TROPE_MAX_ROTARY_DIM / 2];
    reference_element *head; /* y of one head, in the arithmetic */
    reference_result *result;
} walk;

typedef struct head {
    int operand;
    int64_t group, head;
} head;

/* The number of the first element of a head of this token; heads that are one have the same. */
static int64_t head_number(const walk *w, head h, const tensor *t)
{
    const int64_t row = w->batch * t->size[TROPE_DIM_TOKEN] + w->token;
    const int64_t group = row * t->size[TROPE_DIM_GROUP] + (t->size[TROPE_DIM_GROUP] > 1 ? h.group : 0);
    const int64_t number = group * t->size[TROPE_DIM_HEAD] + (t->size[TROPE_DIM_HEAD] > 1 ? h.head : 0);
    return number * t->size[TROPE_DIM_ELEMENT];
}

static const char *element_address(const walk *w, const tensor *t, int64_t number)
{
    return (const char *)t->base + tensor_offset(t, number) * (int64_t)number_size(w->args->dtype);
}

static double element_at(const walk *w, const tensor *t, int64_t number)
{
    return number_load(w->args->dtype, element_address(w, t, number));
}

/* Whether the heads of an operand are summed, those of each head of dst. */
static int is_summed(const walk *w, int operand)
{
    return w->backward && w->args->operands[operand].shared_heads;
}

/* t[i] = t[2i] + t[2i+1], from i = first on, over `size` heads, a power of two, of which there are `heads`: in the arithmetic. The
 * heads of a group follow each other. */
static double sum_tree(const walk *w, head h, const tensor *t, int64_t element, int64_t first, int64_t size, int64_t heads)
{
    if (first >= heads)
        return 0;
    if (size == 1) {
        const int64_t of_group = t->size[TROPE_DIM_HEAD];
        return element_at(w, t,
                          head_number(w, (head){h.operand, h.group + first / of_group, first % of_group}, t) + element);
    }
    const double sum =
        sum_tree(w, h, t, element, first, size / 2, heads) + sum_tree(w, h, t, element, first + size / 2, size / 2, heads);
    return is_double(w->args) ? sum : (double)(float)sum;
}

/* An element of a head of the source; where heads are summed, of their sum. NATIVE rounds it to the dtype. */
static double source_at(const walk *w, head h, const tensor *t, int64_t element)
{
    if (!is_summed(w, h.operand))
        return element_at(w, t, head_number(w, h, t) + element);
    const int all = w->args->operands[h.operand].shared_heads == TROPE_SHARED_ALL;
    const int64_t heads = t->size[TROPE_DIM_HEAD] * (all ? t->size[TROPE_DIM_GROUP] : 1);
    int64_t size = 1;
    while (size < heads)
        size *= 2;
    const double sum = sum_tree(w, h, t, element, 0, size, heads);
    return w->args->rounding == TROPE_ROUND_NATIVE ? number_round(w->args->dtype, sum) : sum;
}

static int rotates(const walk *w)
{
    return !w->place.is_padding || w->args->padding == TROPE_PADDING_ROTATE;
}

static int is_zeroed(const walk *w)
{
    return w->place.is_padding && w->args->padding == TROPE_PADDING_ZERO;
}

/* The pairs of an operand: none if it is only copied. */
static int pairs_of(const trope_operand *o)
{
    return o->rotary_dim < 0 ? 0 : o->rotary_dim / 2;
}

static void copy_head(const walk *w, head h)
{
    const tensor src = tensor_of(w->args, h.operand, TENSOR_SRC, w->backward);
    const int64_t first = head_number(w, h, &src);
    for (int64_t i = 0; i < src.size[TROPE_DIM_ELEMENT]; i++) {
        w->head[i] = (reference_element){.kind = REFERENCE_BITS};
        if (is_zeroed(w))
            continue;
        w->head[i].value = source_at(w, h, &src, i);
        w->head[i].bits = number_bits(w->args->dtype, element_address(w, &src, first + i));
        if (is_summed(w, h.operand))
            w->head[i].kind = REFERENCE_NUMBER;
    }
}

static void rotate_head(const walk *w, head h)
{
    const trope_operand *o = &w->args->operands[h.operand];
    const tensor src = tensor_of(w->args, h.operand, TENSOR_SRC, w->backward);
    const int32_t in = w->backward ? pairing_out(w->args) : w->args->pairing;
    const int32_t out = w->backward ? w->args->pairing : pairing_out(w->args);
    for (int pair = 0; pair < pairs_of(o); pair++) {
        int from[2], to[2];
        reference_element rotated[2];
        pair_elements(w->args, in, o->rotary_dim, pair, from);
        pair_elements(w->args, out, o->rotary_dim, pair, to);
        const double x[2] = {source_at(w, h, &src, o->rotary_offset + from[0]),
                             source_at(w, h, &src, o->rotary_offset + from[1])};
        rotate_pair(w->args, w->backward, &w->turns[pair], x, rotated);
        for (int i = 0; i < 2; i++)
            w->head[o->rotary_offset + to[i]] = rotated[i];
    }
}

/* What a head of dst becomes, of which `h` is the first in the source. */
static void write_head(const walk *w, head h)
{
    const tensor dst = tensor_of(w->args, h.operand, TENSOR_DST, w->backward);
    const int32_t shared = is_summed(w, h.operand) ? w->args->operands[h.operand].shared_heads : TROPE_SHARED_NONE;
    if (shared && (h.head > 0 || (shared == TROPE_SHARED_ALL && h.group > 0)))
        return;
    copy_head(w, h);
    if (rotates(w))
        rotate_head(w, h);
    memcpy(w->result->operands[h.operand] + head_number(w, h, &dst), w->head,
           (size_t)dst.size[TROPE_DIM_ELEMENT] * sizeof *w->head);
}

/* From the arithmetic to what is stored, of one token of an operand. */
static void store_token(const walk *w, int operand)
{
    const trope_operand *o = &w->args->operands[operand];
    const tensor dst = tensor_of(w->args, operand, TENSOR_DST, w->backward);
    const int64_t count = dst.size[2] * dst.size[3] * dst.size[4];
    const int64_t first = head_number(w, (head){operand, 0, 0}, &dst);
    for (int64_t i = first; i < first + count; i++) {
        reference_element *y = &w->result->operands[operand][i];
        if (is_zeroed(w)) {
            y->bits = w->backward && o->accumulate ? number_bits(w->args->dtype, element_address(w, &dst, i)) : 0;
            continue;
        }
        if (w->backward && o->accumulate)
            accumulate(w->args, element_at(w, &dst, i), y);
        round_to_dtype(w->args, y);
    }
}

/* ---- The gradient of the angles ---- */

static void add_to_sum(const walk *w, int64_t index, long double factor, term t)
{
    reference_sum *sum = &w->result->angles[index];
    sum->value += factor * t.x * t.coefficient;
    sum->magnitude += fabs((double)(factor * t.x * t.coefficient));
    sum->tolerance += fabs((double)factor * t.x) * t.error;
    sum->terms++;
}

/* How far the library's coefficients may be from m cos a and m sin a. */
static double coefficient_error(const trope_args *args, const turn *t, int i)
{
    const double m = scale(args), greatest = fabs(m) * fmax(fabs((double)t->cosine[i]), fabs((double)t->sine[i]));
    return fabs(m) * t->error + (m != 1 ? unit(args) * greatest : 0) + 0x1p-52 * greatest; /* products in double */
}

static void gradient_strides(const trope_args *args, int64_t stride[4])
{
    tensor_table_strides(args, args->d_freqs_layout, args->d_freqs_stride, column_count(args), stride);
}

/* What a pair of one head adds to the gradient of its angles, from
 *     y1 = m (x1 cos a1 - sign x2 sin a1)        y2 = m (x2 cos a2 + sign x1 sin a2). */
static void add_pair(const walk *w, int pair, const double x[2], const double g[2])
{
    const trope_args *args = w->args;
    const turn *t = &w->turns[pair];
    const long double m = scale(args), sign = args->inverse ? -1 : 1;
    const double length = fabs(x[0]) + fabs(x[1]);
    const term first = {g[0], m * (-x[0] * t->sine[0] - sign * x[1] * t->cosine[0]),
                        length * coefficient_error(args, t, 0)};
    const term second = {g[1], m * (-x[1] * t->sine[1] + sign * x[0] * t->cosine[1]),
                         length * coefficient_error(args, t, 1)};
    if (args->d_inv_freq) {
        add_to_sum(w, pair, t->position, first);
        add_to_sum(w, pair, t->position, second);
        return;
    }
    int column[2];
    int64_t stride[4];
    columns_of_pair(args, pair, column);
    gradient_strides(args, stride);
    const int64_t row = t->axis * stride[0] + w->batch * stride[1] + t->row * stride[2];
    add_to_sum(w, row + column[0] * stride[3], 1, first);
    add_to_sum(w, row + column[1] * stride[3], 1, second);
}

static void add_head(const walk *w, head h)
{
    const trope_operand *o = &w->args->operands[h.operand];
    const tensor dy = tensor_of(w->args, h.operand, TENSOR_SRC, 1);
    const tensor forward_src = tensor_of(w->args, h.operand, TENSOR_FORWARD_SRC, 1);
    const int64_t dy_window = head_number(w, h, &dy) + o->rotary_offset;
    const int64_t x_window = head_number(w, h, &forward_src) + o->rotary_offset;
    for (int pair = 0; pair < pairs_of(o); pair++) {
        int in[2], out[2];
        double x[2], g[2];
        pair_elements(w->args, w->args->pairing, o->rotary_dim, pair, in);
        pair_elements(w->args, pairing_out(w->args), o->rotary_dim, pair, out);
        for (int i = 0; i < 2; i++) {
            x[i] = element_at(w, &forward_src, x_window + in[i]);
            g[i] = element_at(w, &dy, dy_window + out[i]);
        }
        if (!w->turns[pair].is_poisoned)
            add_pair(w, pair, x, g);
    }
}

/* ---- Walking ---- */

static void walk_operand(const walk *w, int operand)
{
    const trope_operand *o = &w->args->operands[operand];
    for (int64_t group = 0; group < (o->groups ? o->groups : 1); group++)
        for (int64_t h = 0; h < o->heads_per_group; h++) {
            if (w->result->operands[operand])
                write_head(w, (head){operand, group, h});
            if (w->result->angles && rotates(w))
                add_head(w, (head){operand, group, h});
        }
    if (w->result->operands[operand])
        store_token(w, operand);
}

static void walk_token(walk *w)
{
    const trope_args *args = w->args;
    for (int pair = 0; rotates(w) && pair < reference_pairs(args); pair++) {
        w->turns[pair] = find_turn(args, w->batch, &w->place, pair);
        if (w->turns[pair].is_poisoned)
            w->result->status |= TROPE_STATUS_POSITION;
    }
    for (int i = 0; i < args->operand_count; i++)
        walk_operand(w, i);
}

/* What adding the terms in double and one rounding of the sum leave, of which two ulp are granted. */
static void finish_sums(const trope_args *args, reference_result *result)
{
    const int32_t dtype = args->d_inv_freq || is_double(args) ? TROPE_F64 : TROPE_F32;
    for (int64_t i = 0; i < result->angle_count; i++) {
        reference_sum *sum = &result->angles[i];
        sum->tolerance += (double)(sum->terms + 8) * 0x1p-53 * sum->magnitude;
        if (sum->terms)
            sum->tolerance += 4 * number_half_ulp(dtype, (double)sum->value);
    }
}

/* An entry of d_freqs for each place in memory that its layout has. */
static void make_table_sums(const trope_args *args, reference_result *result)
{
    const int64_t size[4] = {reference_planes(args), args->batch, args->angle_rows, column_count(args)};
    int64_t stride[4];
    gradient_strides(args, stride);
    result->angle_count = 1;
    for (int d = 0; d < 4; d++)
        result->angle_count += (size[d] - 1) * stride[d];
    result->angles = calloc((size_t)result->angle_count, sizeof *result->angles);
    for (int64_t i = 0; i < size[0] * size[1] * size[2] * size[3]; i++) {
        const int64_t row = i / size[3], batch = row / size[2], axis = batch / size[1];
        const int64_t offset = axis * stride[0] + batch % size[1] * stride[1] + row % size[2] * stride[2];
        result->angles[offset + i % size[3] * stride[3]].exists = 1;
    }
}

static void make_sums(const trope_args *args, reference_result *result)
{
    if (args->d_freqs)
        make_table_sums(args, result);
    if (!args->d_inv_freq)
        return;
    result->angle_count = reference_pairs(args);
    result->angles = calloc((size_t)result->angle_count, sizeof *result->angles);
    for (int64_t i = 0; i < result->angle_count; i++)
        result->angles[i].exists = 1;
}

reference_result reference_run(const trope_args *args, int backward)
{
    reference_result result = {.backward = backward};
    int32_t widest = 1;
    for (int i = 0; i < args->operand_count; i++) {
        const tensor dst = tensor_of(args, i, TENSOR_DST, backward);
        widest = args->operands[i].head_dim > widest ? args->operands[i].head_dim : widest;
        if (dst.base)
            result.operands[i] = calloc((size_t)tensor_count(&dst) + 1, sizeof *result.operands[i]);
    }
    if (backward)
        make_sums(args, &result);
    walk *w = calloc(1, sizeof *w);
    *w = (walk){.args = args, .backward = backward, .result = &result};
    w->head = calloc((size_t)widest, sizeof *w->head);
    for (w->batch = 0; w->batch < args->batch; w->batch++)
        for (w->token = 0; w->token < args->tokens; w->token++) {
            w->place = reference_find(args, w->batch, w->token);
            walk_token(w);
        }
    free(w->head);
    free(w);
    finish_sums(args, &result);
    return result;
}

void reference_free(reference_result *result)
{
    for (int i = 0; i < TROPE_MAX_OPERANDS; i++)
        free(result->operands[i]);
    free(result->angles);
}
