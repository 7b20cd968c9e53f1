/* The reference for the axis and the angles of each pair. */
#include "support/reference_parts.h"

/* A type with a 113-bit significand, for position * inv_freq. The factors have 63 and 53 bits. */
#ifdef __SIZEOF_FLOAT128__
__extension__ typedef __float128 wide;
#else
typedef long double wide;
#endif

/* ---- Pairs ---- */

static int part_count(const trope_args *args)
{
    return args->parts ? args->parts : 1;
}

int reference_pairs(const trope_args *args)
{
    int pairs = 0;
    for (int i = 0; i < args->operand_count; i++)
        pairs = args->operands[i].rotary_dim / 2 > pairs ? args->operands[i].rotary_dim / 2 : pairs;
    return pairs;
}

void reference_pair_elements(const trope_args *args, int32_t pairing, int dim, int pair, int element[2])
{
    const int in_part = dim / 2 / part_count(args), part = pair / in_part, i = pair % in_part;
    const int first = part * 2 * in_part;
    element[0] = pairing == TROPE_PAIRING_HALF ? first + i : first + 2 * i;
    element[1] = pairing == TROPE_PAIRING_HALF ? first + i + in_part : first + 2 * i + 1;
}

/* The axis of a pair, by pair_axis or by its part. */
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

int reference_columns(const trope_args *args)
{
    return reference_pairs(args) * (args->angle_columns == TROPE_COLUMNS_PAIR ? 1 : 2);
}

void reference_columns_of_pair(const trope_args *args, int pair, int column[2])
{
    const int32_t order = args->angle_columns == TROPE_COLUMNS_HALF ? TROPE_PAIRING_HALF : TROPE_PAIRING_INTERLEAVED;
    if (args->angle_columns == TROPE_COLUMNS_PAIR)
        column[0] = column[1] = pair;
    else
        reference_pair_elements(args, order, reference_columns(args), pair, column);
}

static double angle_at(const trope_args *args, const void *table, int64_t batch, const turn *t, int column)
{
    int64_t stride[4];
    tensor_table_strides(args, args->angle_layout, args->angle_stride, reference_columns(args), stride);
    const int64_t i = t->axis * stride[0] + batch * stride[1] + t->row * stride[2] + column * stride[3];
    return number_load(args->angle_dtype, (const char *)table + i * (int64_t)number_size(args->angle_dtype));
}

static wide two_pi(void)
{
    return (wide)0x1.921fb54442d18p+2 + (wide)0x1.1a62633145c07p-52 - (wide)0x1.f1976b7ed8fbcp-108;
}

/* position * inv_freq modulo a full circle, in radians. */
static long double phase(int64_t position, double inv_freq)
{
    const wide turns = (wide)position * (wide)inv_freq / two_pi();
    return (long double)((turns - (wide)(int64_t)turns) * two_pi());
}

/* The same for phase steps. A position adds `step` / 2^64 turns, and the unsigned product drops whole turns. */
static long double phase_of_steps(int64_t position, uint64_t step)
{
    return (long double)((wide)((uint64_t)position * step) / (wide)0x1p64 * two_pi());
}

static void read_angles(const trope_args *args, int64_t batch, int pair, turn *t)
{
    int column[2];
    reference_columns_of_pair(args, pair, column);
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

turn reference_find_turn(const trope_args *args, int64_t batch, const reference_place *place, int pair)
{
    const int axis = axis_of_pair(args, pair);
    turn t = {.axis = axis, .position = place->position[axis]};
    t.error = args->cos ? 0 : is_double(args) ? 1e-15 : 1.2e-7;
    if (args->phase_step)
        return turn_by_phase(phase_of_steps(t.position, args->phase_step[pair]), t);
    if (args->inv_freq) {
        /* The phase step is rounded to 2^-64 turns. */
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
