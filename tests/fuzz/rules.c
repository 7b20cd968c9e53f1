/* Calls trope_frequencies and the helpers with arbitrary arguments. Each function must refuse its arguments and write
 * nothing, or succeed with finite frequencies and valid axes. It must not access a byte beyond its arguments. */
#include <math.h>

#include "fuzz/input.h"
#include "support/guarded.h"

enum { MOST_PAIRS = TROPE_MAX_ROTARY_DIM / 2 };
enum { HOME_OUT = GUARDED_FIRST_FREE, HOME_FIRST, HOME_SECOND, HOME_THIRD };

static guarded_side side;

static void check_status(trope_status status)
{
    HOLDS(status >= TROPE_OK && status <= TROPE_ERROR_UNSUPPORTED);
    HOLDS(status == TROPE_OK || trope_last_error()[0]);
}

/* Memory for a result of `size` bytes, filled with 0xFF. */
static void *make_result(int home, size_t size)
{
    return memset(guarded_bytes(home, size, side), 0xff, size);
}

static int is_untouched(const void *result, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)result)[i] != 0xff)
            return 0;
    return 1;
}

/* A number that a model's configuration might contain, or any number. */
static double take_real(input *in)
{
    static const double known[] = {0,   1,     2,      8,      32,       64,        0.25,   1e4,    5e5,
                                   1e6, 8192,  4096,   131072, 0.5,      0.1,       40,     0.707,  1.0 - 1e-16,
                                   -1,  1e300, 5e-324, NAN,    INFINITY, 1 + 1e-15, 1e-300, 1.7e308};
    double value;
    uint8_t bits[8];
    if (take_below(in, 4))
        return known[take_below(in, sizeof known / sizeof known[0])];
    take_bytes(in, bits, sizeof bits);
    memcpy(&value, bits, sizeof value);
    return value;
}

/* As many numbers as the function reads, or NULL. */
static const double *take_reals(input *in, int home, int count)
{
    double *to = (void *)guarded_bytes(home, (size_t)count * sizeof *to, side);
    const double one = take_real(in);
    if (!take_below(in, 4))
        return NULL;
    for (int i = 0; i < count; i++)
        to[i] = i % 7 == 3 ? one : 1.0 + i;
    return to;
}

static int pairs_of(int64_t rotary_dim)
{
    return rotary_dim >= 2 && rotary_dim <= TROPE_MAX_ROTARY_DIM ? (int)(rotary_dim / 2) : 0;
}

static void frequencies(input *in)
{
    trope_frequency_args rule = {.struct_size = sizeof rule, .base = 10000};
    double *const fields[] = {&rule.base,      &rule.factor,          &rule.original_max_position,
                              &rule.seq_len,   &rule.low_freq_factor, &rule.high_freq_factor,
                              &rule.beta_fast, &rule.beta_slow,       &rule.attention_factor,
                              &rule.mscale,    &rule.mscale_all_dim,  &rule.partial_rotary_factor};
    rule.rule = take_below(in, 9);
    rule.rotary_dim = take_below(in, 8) ? 2 * (take_below(in, MOST_PAIRS) + 1) : (int32_t)take_number(in, 64);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        *fields[i] = take_below(in, 2) ? take_real(in) : *fields[i];
    const int pairs = pairs_of(rule.rotary_dim);
    rule.short_factor = take_below(in, 3) ? NULL : take_reals(in, HOME_FIRST, pairs);
    rule.long_factor = take_below(in, 3) ? NULL : take_reals(in, HOME_SECOND, pairs);
    rule.no_truncate = take_below(in, 3);
    if (!take_below(in, 16))
        rule.struct_size = (uint64_t)take_number(in, sizeof rule) % 4096;
    size_t size = rule.struct_size > sizeof rule.struct_size ? rule.struct_size : sizeof rule.struct_size;
    unsigned char *placed = memset(guarded_bytes(HOME_THIRD, size, side), 0, size);
    memcpy(placed, &rule, size < sizeof rule ? size : sizeof rule);

    struct {
        double before, factor, after;
    } attention;
    memset(&attention, 0xff, sizeof attention);
    double *inv_freq = make_result(HOME_OUT, (size_t)pairs * sizeof *inv_freq);
    const trope_status status = trope_frequencies((const void *)placed, inv_freq, &attention.factor);
    check_status(status);
    if (status) {
        HOLDS(is_untouched(inv_freq, (size_t)pairs * sizeof *inv_freq) && is_untouched(&attention, sizeof attention));
        return;
    }
    HOLDS(isfinite(attention.factor));
    for (int i = 0; i < pairs; i++)
        HOLDS(fabs(inv_freq[i]) < 0x1p64);
}

static void phase_steps(input *in)
{
    const int32_t pairs = (int32_t)take_number(in, 32);
    const int read = pairs >= 1 && pairs <= MOST_PAIRS ? pairs : 0;
    const double *inv_freq = take_reals(in, HOME_FIRST, read);
    uint64_t *steps = make_result(HOME_OUT, (size_t)read * sizeof *steps);
    const trope_status status = trope_phase_steps(inv_freq, pairs, steps);
    check_status(status);
    HOLDS(status == TROPE_OK || is_untouched(steps, (size_t)read * sizeof *steps));
}

static void pair_axis(input *in)
{
    const int32_t pairs = (int32_t)take_number(in, 32), order = (int32_t)take_number(in, TROPE_AXES_SECTIONS);
    const int written = pairs >= 1 && pairs <= MOST_PAIRS ? pairs : 0;
    int32_t *sections = (void *)guarded_bytes(HOME_FIRST, TROPE_MAX_AXES * sizeof *sections, side);
    for (int i = 0; i < TROPE_MAX_AXES; i++)
        sections[i] = (int32_t)take_number(in, pairs / 2);
    if (take_below(in, 2)) /* makes the sum of the sections equal to pairs */
        sections[0] = (int32_t)((uint32_t)pairs - (uint32_t)sections[1] - (uint32_t)sections[2] - (uint32_t)sections[3]);
    uint8_t *axis = make_result(HOME_OUT, (size_t)written);
    const trope_status status = trope_fill_pair_axis(axis, pairs, order, sections);
    check_status(status);
    for (int i = 0; i < written; i++)
        HOLDS(status == TROPE_OK ? axis[i] < TROPE_MAX_AXES : axis[i] == 0xff);
}

static void operands(input *in)
{
    trope_qkv qkv = {.struct_size = sizeof qkv};
    int32_t *const numbers[] = {&qkv.layout,   &qkv.order,    &qkv.dtype,      &qkv.q_heads,
                                &qkv.kv_heads, &qkv.head_dim, &qkv.rotary_dim, &qkv.reserved};
    static const int32_t typical[] = {TROPE_SBHD, TROPE_QKV_GROUPS, TROPE_BF16, 8, 2, 64, 64, 0};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        *numbers[i] = take_below(in, 3) ? typical[i] : (int32_t)take_number(in, typical[i]);
    qkv.batch = take_number(in, 2);
    qkv.tokens = take_number(in, 16);
    void *buffer = make_result(HOME_FIRST, 64);
    qkv.buffer = take_below(in, 8) ? buffer : NULL;
    trope_operand *operand = make_result(HOME_OUT, sizeof *operand);
    const trope_qkv *placed = guarded_copy(HOME_SECOND, &qkv, sizeof qkv, side);
    trope_status status = trope_fill_qkv(operand, placed, take_below(in, 5));
    check_status(status);
    HOLDS(status == TROPE_OK || is_untouched(operand, sizeof *operand));

    make_result(HOME_OUT, sizeof *operand);
    status = trope_fill_operand(operand, qkv.buffer, qkv.layout, qkv.q_heads, qkv.head_dim, qkv.rotary_dim);
    check_status(status);
    HOLDS(status == TROPE_OK || is_untouched(operand, sizeof *operand));

    int64_t *stride = make_result(HOME_OUT, TROPE_MAX_DIMS * sizeof *stride);
    status = trope_fill_strides(stride, qkv.layout, qkv.batch, qkv.tokens, qkv.q_heads, qkv.head_dim);
    check_status(status);
    HOLDS(status == TROPE_OK || is_untouched(stride, TROPE_MAX_DIMS * sizeof *stride));
}

/* Names. If `side` is GUARDED_ABOVE, the inaccessible page follows their terminating zero byte. */
static void names(input *in)
{
    char struct_name[24], field[24];
    take_bytes(in, struct_name, sizeof struct_name - 1);
    take_bytes(in, field, sizeof field - 1);
    struct_name[sizeof struct_name - 1] = field[sizeof field - 1] = 0;
    const char *first = guarded_copy(HOME_FIRST, struct_name, strlen(struct_name) + 1, side);
    const char *second = guarded_copy(HOME_SECOND, field, strlen(field) + 1, side);
    const size_t size = trope_sizeof(first);
    HOLDS(trope_offsetof(first, second) < (int64_t)(size ? size : 1));
    HOLDS(trope_status_name((trope_status)take_number(in, 0))[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const targets[])(input *) = {frequencies, phase_steps, pair_axis, operands, names};
    input in = {data, size};
    side = take_below(&in, 2) ? GUARDED_ABOVE : GUARDED_BELOW;
    targets[take_below(&in, sizeof targets / sizeof targets[0])](&in);
    return 0;
}
