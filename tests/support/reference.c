#include "support/reference.h"

#include <math.h>
#include <stdlib.h>

#include "support/number.h"

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
    const int64_t step = args->position_token_stride ? args->position_token_stride : 1;
    for (int axis = 0; axis < TROPE_MAX_AXES; axis++) {
        const int64_t row = args->position_axes > 1 ? axis : 0;
        place->position[axis] = index;
        if (args->position_ids && row < (args->position_axes ? args->position_axes : 1))
            place->position[axis] =
                index_at(args->position_ids, args->position_dtype,
                         row * args->position_axis_stride + batch * args->position_batch_stride + token * step);
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
    if (args->packed_positions)
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

static int window_count(const trope_args *args)
{
    return args->windows ? args->windows : 1;
}

static int32_t pairing_in(const trope_args *args)
{
    return args->pairing ? args->pairing : TROPE_PAIRING_HALF;
}

static int32_t pairing_out(const trope_args *args)
{
    return args->pairing_out ? args->pairing_out : pairing_in(args);
}

int reference_pairs(const trope_args *args)
{
    int pairs = 0;
    for (int i = 0; i < args->operand_count; i++)
        pairs = args->operands[i].rotary_dim / 2 > pairs ? args->operands[i].rotary_dim / 2 : pairs;
    return pairs;
}

/* The elements of a pair in a window area of `dim` elements that is cut into equal windows. */
static void pair_elements(const trope_args *args, int32_t pairing, int dim, int pair, int element[2])
{
    const int in_window = dim / 2 / window_count(args), window = pair / in_window, i = pair % in_window;
    const int first = window * 2 * in_window;
    element[0] = pairing == TROPE_PAIRING_HALF ? first + i : first + 2 * i;
    element[1] = pairing == TROPE_PAIRING_HALF ? first + i + in_window : first + 2 * i + 1;
}

static int axis_of_pair(const trope_args *args, int pair)
{
    const int32_t *sections = args->axis_sections;
    if (args->position_axes <= 1)
        return 0;
    if (args->axis_map == TROPE_AXES_SECTIONS)
        return pair < sections[0] ? 0 : pair < sections[0] + sections[1] ? 1 : 2;
    if (args->axis_map == TROPE_AXES_INTERLEAVED)
        return pair < 3 * sections[pair % 3] ? pair % 3 : 0;
    return pair / (reference_pairs(args) / window_count(args));
}

int reference_uses_axis(const trope_args *args, int axis)
{
    const int pairs = reference_pairs(args);
    for (int pair = 0; pair < pairs; pair++)
        if (axis_of_pair(args, pair) == axis)
            return 1;
    return 0;
}

/* ---- Angles ---- */

/* What turns one pair at one token. */
typedef struct turn {
    long double cosine[2], sine[2]; /* of the angles of its first and of its second element */
    double error;                   /* the most by which the library's may differ */
    int64_t position, row;
    int is_poisoned;
} turn;

static int is_double(const trope_args *args)
{
    return args->dtype == TROPE_F64;
}

static int64_t angle_row_stride(const trope_args *args)
{
    return args->angle_row_stride ? args->angle_row_stride : args->angle_cols;
}

int64_t reference_angle_batches(const trope_args *args)
{
    return args->angle_batch_stride ? args->batch : 1;
}

/* The columns that hold the angles of a pair: one twice, or two. */
static void angle_columns(const trope_args *args, int pair, int column[2])
{
    if (args->angle_cols == reference_pairs(args))
        column[0] = column[1] = pair;
    else
        pair_elements(args, pairing_out(args), args->angle_cols, pair, column);
}

static double angle_at(const trope_args *args, const void *table, int64_t batch, int64_t row, int column)
{
    const int64_t i = batch * args->angle_batch_stride + row * angle_row_stride(args) + column;
    return number_load(args->angle_dtype, (const char *)table + i * (int64_t)number_size(args->angle_dtype));
}

/* position * inv_freq modulo one turn, in radians. */
static long double phase(int64_t position, double inv_freq)
{
    const wide two_pi = (wide)0x1.921fb54442d18p+2 + (wide)0x1.1a62633145c07p-52 - (wide)0x1.f1976b7ed8fbcp-108;
    const wide turns = (wide)position * (wide)inv_freq / two_pi;
    return (long double)((turns - (wide)(int64_t)turns) * two_pi);
}

static void read_angles(const trope_args *args, int64_t batch, int pair, turn *t)
{
    int column[2];
    angle_columns(args, pair, column);
    for (int i = 0; i < 2; i++) {
        if (i == 1 && column[1] == column[0]) {
            t->cosine[1] = t->cosine[0];
            t->sine[1] = t->sine[0];
        } else if (args->freqs) {
            const double angle = angle_at(args, args->freqs, batch, t->row, column[i]);
            t->cosine[i] = cosl(angle);
            t->sine[i] = sinl(angle);
        } else {
            t->cosine[i] = angle_at(args, args->cos, batch, t->row, column[i]);
            t->sine[i] = angle_at(args, args->sin, batch, t->row, column[i]);
        }
    }
}

static turn find_turn(const trope_args *args, int64_t batch, const reference_place *place, int pair)
{
    turn t = {.position = place->position[axis_of_pair(args, pair)]};
    t.error = args->cos ? 0 : is_double(args) ? 1e-15 : 1.2e-7;
    if (args->inv_freq) {
        /* The phase per position is rounded to 2^-64 turns. */
        t.error += fabs((double)t.position) * 0x1p-65 * 6.2832;
        t.cosine[0] = t.cosine[1] = cosl(phase(t.position, args->inv_freq[pair]));
        t.sine[0] = t.sine[1] = sinl(phase(t.position, args->inv_freq[pair]));
        return t;
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

static reference_element rounded_once(const trope_args *args, term fused, term product)
{
    const long double value = fused.x * fused.coefficient + product.x * product.coefficient;
    double tolerance = fabs(fused.x) * fused.error + fabs(product.x) * product.error;
    tolerance += unit(args) * (double)fabsl(product.x * product.coefficient);
    if (args->rounding == TROPE_ROUND_NATIVE)
        tolerance += unit(args) * (double)fabsl(fused.x * fused.coefficient);
    tolerance += number_half_ulp(is_double(args) ? TROPE_F64 : TROPE_F32, fabs((double)value) + tolerance);
    if (args->dtype == TROPE_F16 || args->dtype == TROPE_BF16)
        tolerance += number_half_ulp(args->dtype, fabs((double)value) + tolerance);
    return (reference_element){.value = value, .tolerance = tolerance, .kind = REFERENCE_NUMBER};
}

static double rounded_product(int32_t dtype, term t, double sign)
{
    return number_round(dtype, t.x * number_round(dtype, (double)t.coefficient + sign * t.error));
}

/* Each operation rounded to f16 or bf16; between the least and the greatest coefficients. */
static reference_element rounded_natively(const trope_args *args, term a, term b)
{
    double least = INFINITY, greatest = -INFINITY;
    for (int i = 0; i < 4; i++) {
        const double sum =
            rounded_product(args->dtype, a, i & 1 ? 1 : -1) + rounded_product(args->dtype, b, i & 2 ? 1 : -1);
        const double y = number_round(args->dtype, sum);
        least = y < least ? y : least;
        greatest = y > greatest ? y : greatest;
    }
    const double middle = (least + greatest) / 2;
    return (reference_element){.value = middle, .tolerance = greatest - middle, .kind = REFERENCE_NUMBER};
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
        term fused = {.x = x[i], .coefficient = matrix[i][i]}, product = {.x = x[other], .coefficient = matrix[i][other]};
        const double rounding = m != 1 ? unit(args) : 0;
        fused.error = (double)(fabsl(m) * t->error + rounding * fabsl(fused.coefficient));
        product.error = (double)(fabsl(m) * t->error + rounding * fabsl(product.coefficient));
        if (args->rounding == TROPE_ROUND_NATIVE && (args->dtype == TROPE_F16 || args->dtype == TROPE_BF16))
            y[i] = rounded_natively(args, fused, product);
        else
            y[i] = rounded_once(args, fused, product);
        if (t->is_poisoned)
            y[i].kind = REFERENCE_NAN;
    }
}

/* ---- The call ---- */

typedef struct walk {
    const trope_args *args;
    int backward;
    int64_t batch, token;
    reference_place place;
    turn turns[TROPE_MAX_ROTARY_DIM / 2];
    reference_result *result;
} walk;

typedef struct head {
    int operand;
    int64_t group, head;
} head;

static const char *head_address(const walk *w, head h, const void *base, const int64_t *stride)
{
    const int64_t offset = w->batch * stride[0] + w->token * stride[1] + h.group * stride[2] + h.head * stride[3];
    return (const char *)base + offset * (int64_t)number_size(w->args->dtype);
}

static double element_at(const walk *w, const char *address, int64_t stride, int i)
{
    return number_load(w->args->dtype, address + i * stride * (int64_t)number_size(w->args->dtype));
}

int64_t reference_count(const trope_args *args, int operand)
{
    const trope_operand *o = &args->operands[operand];
    return args->batch * args->tokens * (o->groups ? o->groups : 1) * o->heads_per_group * o->head_dim;
}

static void copy_head(const walk *w, const trope_operand *o, const char *source, reference_element *y)
{
    for (int i = 0; i < o->head_dim; i++) {
        const char *address = source + i * o->src_stride[4] * (int64_t)number_size(w->args->dtype);
        y[i].kind = REFERENCE_BITS;
        y[i].bits = number_bits(w->args->dtype, address);
        if (w->place.is_padding && w->args->padding == TROPE_PADDING_ZERO)
            y[i].bits = 0;
    }
}

static void rotate_head(const walk *w, const trope_operand *o, const char *source, reference_element *y)
{
    const int32_t in = w->backward ? pairing_out(w->args) : pairing_in(w->args);
    const int32_t out = w->backward ? pairing_in(w->args) : pairing_out(w->args);
    for (int pair = 0; pair < o->rotary_dim / 2; pair++) {
        int from[2], to[2];
        reference_element rotated[2];
        pair_elements(w->args, in, o->rotary_dim, pair, from);
        pair_elements(w->args, out, o->rotary_dim, pair, to);
        double x[2];
        for (int i = 0; i < 2; i++)
            x[i] = element_at(w, source, o->src_stride[4], o->rotary_offset + from[i]);
        rotate_pair(w->args, w->backward, &w->turns[pair], x, rotated);
        for (int i = 0; i < 2; i++)
            y[o->rotary_offset + to[i]] = rotated[i];
    }
}

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
    if (args->inv_freq) {
        add_to_sum(w, pair, t->position, first);
        add_to_sum(w, pair, t->position, second);
        return;
    }
    int column[2];
    angle_columns(args, pair, column);
    const int64_t batch = args->angle_batch_stride ? w->batch : 0;
    const int64_t row = (batch * args->angle_rows + t->row) * args->angle_cols;
    add_to_sum(w, row + column[0], 1, first);
    add_to_sum(w, row + column[1], 1, second);
}

static void add_head(const walk *w, head h, const char *upstream)
{
    const trope_operand *o = &w->args->operands[h.operand];
    const char *input = head_address(w, h, o->input, o->input_stride);
    for (int pair = 0; pair < o->rotary_dim / 2; pair++) {
        int in[2], out[2];
        double x[2], g[2];
        pair_elements(w->args, pairing_in(w->args), o->rotary_dim, pair, in);
        pair_elements(w->args, pairing_out(w->args), o->rotary_dim, pair, out);
        for (int i = 0; i < 2; i++) {
            x[i] = element_at(w, input, o->input_stride[4], o->rotary_offset + in[i]);
            g[i] = element_at(w, upstream, o->src_stride[4], o->rotary_offset + out[i]);
        }
        if (!w->turns[pair].is_poisoned)
            add_pair(w, pair, x, g);
    }
}

static void walk_head(const walk *w, head h)
{
    const trope_operand *o = &w->args->operands[h.operand];
    const char *source = head_address(w, h, o->src, o->src_stride);
    const int rotates = o->rotary_dim && !(w->place.is_padding && w->args->padding != TROPE_PADDING_ROTATE);
    const int64_t groups = o->groups ? o->groups : 1;
    const int64_t number = ((w->batch * w->args->tokens + w->token) * groups + h.group) * o->heads_per_group + h.head;
    if (w->result->operands[h.operand]) {
        reference_element *y = w->result->operands[h.operand] + number * o->head_dim;
        copy_head(w, o, source, y);
        if (rotates)
            rotate_head(w, o, source, y);
    }
    if (w->result->angles && rotates)
        add_head(w, h, source);
}

static void walk_token(walk *w)
{
    const trope_args *args = w->args;
    const int rotates = !(w->place.is_padding && args->padding != TROPE_PADDING_ROTATE);
    for (int pair = 0; rotates && pair < reference_pairs(args); pair++) {
        w->turns[pair] = find_turn(args, w->batch, &w->place, pair);
        if (w->turns[pair].is_poisoned)
            w->result->status |= TROPE_STATUS_POSITION;
    }
    for (int i = 0; i < args->operand_count; i++)
        for (int group = 0; group < (args->operands[i].groups ? args->operands[i].groups : 1); group++)
            for (int h = 0; h < args->operands[i].heads_per_group; h++)
                walk_head(w, (head){i, group, h});
}

/* What adding the terms in double and one rounding of the sum leave, of which two ulp are granted. */
static void finish_sums(const trope_args *args, reference_result *result)
{
    const int32_t dtype = args->inv_freq || is_double(args) ? TROPE_F64 : TROPE_F32;
    for (int64_t i = 0; i < result->angle_count; i++) {
        reference_sum *sum = &result->angles[i];
        sum->tolerance += (double)(sum->terms + 8) * 0x1p-53 * sum->magnitude;
        if (sum->terms)
            sum->tolerance += 4 * number_half_ulp(dtype, (double)sum->value);
    }
}

reference_result reference_run(const trope_args *args, int backward)
{
    reference_result result = {.status = 0};
    for (int i = 0; i < args->operand_count; i++)
        if (args->operands[i].dst)
            result.operands[i] = calloc((size_t)reference_count(args, i) + 1, sizeof *result.operands[i]);
    if (backward && (args->d_freqs || args->d_inv_freq)) {
        result.angle_count = reference_angle_batches(args) * args->angle_rows * args->angle_cols;
        if (args->inv_freq)
            result.angle_count = reference_pairs(args);
        result.angles = calloc((size_t)result.angle_count, sizeof *result.angles);
    }
    walk *w = calloc(1, sizeof *w);
    *w = (walk){.args = args, .backward = backward, .result = &result};
    for (w->batch = 0; w->batch < args->batch; w->batch++)
        for (w->token = 0; w->token < args->tokens; w->token++) {
            w->place = reference_find(args, w->batch, w->token);
            walk_token(w);
        }
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
