/* The GPU computes the same bits as the CPU. Random calls, forward and backward, are compared in every byte that they could
 * write. Every function that takes a call accepts all of them. Together they cover every value of every option.
 *
 * f32, f16 and bf16 are equal bit for bit, including poison, padding, infinities and NaNs. In f64 the sines come from the
 * device's own library. There an element may be off by two ulp or, where the two products of a pair cancel, by the bound of
 * support/reference.h. The gradient of the angles is summed in double in a different order. So it may be off by two ulp
 * plus the rounding of n additions in double. d_weight is compared with the reference. Both gradients have the same bits in
 * a second run.
 *
 *     cuda_parity [--seed S] [--count N] [--separate 1] */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "parity/parity.h"
#include "support/number.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "support/tensor.h"

#define MAX_KERNELS 64
#define ENOUGH      200 /* enough seeds to draw every value of every option */

typedef struct tally {
    device_arena *arena;
    struct {
        char name[64];
        long calls;
    } kernels[MAX_KERNELS];
    long f64_elements, f64_beyond, sums, weights, poisoned;
    long hits[OPTION_COUNT][10]; /* the number of calls with each value of each option */
    double worst_sum;            /* in ulp */
} tally;

static void count_kernel(tally *t)
{
    int i = 0;
    while (i < MAX_KERNELS - 1 && t->kernels[i].calls && strcmp(t->kernels[i].name, t->arena->kernel))
        i++;
    memcpy(t->kernels[i].name, t->arena->kernel, sizeof t->kernels[i].name);
    t->kernels[i].calls++;
    CHECK_MESSAGE(!strncmp(t->arena->kernel, "cuda-", 5), "unexpected kernel %s", t->arena->kernel);
}

/* ---- allowed differences ---- */

/* A copy of a config's buffers after the call on the device. The config itself has the buffers after the call on the
 * CPU. */
typedef struct results {
    const config *c;
    const trope_args *args;
    int backward;
    unsigned char *device;
} results;

/* Returns the address in the device's copy that corresponds to an address in a buffer. */
static unsigned char *on_device(const results *r, const void *address)
{
    size_t at = 0;
    const int buffer = config_buffer_of(r->c, address);
    for (int i = 0; i < buffer; i++)
        at += r->c->buffers[i].size;
    return r->device + at + ((const unsigned char *)address - r->c->buffers[buffer].bytes);
}

/* Returns whether the device's element is within `allowed` of the CPU's. If it is, replaces it with the CPU's element, so
 * that the buffers can be compared bit for bit afterwards. */
static int forgive(const results *r, int32_t dtype, const void *address, double allowed)
{
    unsigned char *element = on_device(r, address);
    const double cpu = number_load(dtype, address), gpu = number_load(dtype, element);
    if (!(fabs(cpu - gpu) <= allowed) && !(isnan(cpu) && isnan(gpu)))
        return 0;
    memcpy(element, address, number_size(dtype));
    return 1;
}

static double two_ulp(int32_t dtype, double value)
{
    return 4 * number_half_ulp(dtype, value);
}

/* Allows the differences of the rstd or token_sums that a norm writes. */
static void forgive_norm(const results *r, const reference_element *expected, const double *numbers, int64_t count)
{
    for (int64_t i = 0; expected && i < count; i++)
        forgive(r, TROPE_F64, &numbers[i], expected[i].kind == REFERENCE_NUMBER ? expected[i].tolerance : 0);
}

static void forgive_f64(const results *r, const reference_result *expected, tally *t)
{
    for (int i = 0; i < r->args->operand_count; i++) {
        const trope_norm *norm = reference_norm(r->args, i);
        const int64_t rows = r->args->batch * r->args->tokens;
        if (norm) {
            forgive_norm(r, expected->rstd[i], norm->rstd, rows * reference_rstds(r->args, i));
            forgive_norm(r, expected->sums[i], norm->token_sums, rows * reference_heads(r->args, i));
        }
        const tensor dst = tensor_of(r->args, i, TENSOR_DST, r->backward);
        for (int64_t j = 0; dst.base && j < tensor_count(&dst); j++) {
            const reference_element *e = &expected->operands[i][j];
            const double *address = (const double *)dst.base + tensor_offset(&dst, j);
            if (e->kind == REFERENCE_NAN)
                forgive(r, TROPE_F64, address, 0); /* any NaN is right */
            if (e->kind != REFERENCE_NUMBER)
                continue;
            t->f64_elements++;
            if (!forgive(r, TROPE_F64, address, two_ulp(TROPE_F64, *address)))
                t->f64_beyond += forgive(r, TROPE_F64, address, e->tolerance);
        }
    }
}

static void forgive_sums(const results *r, const reference_result *expected, tally *t)
{
    const trope_args *a = r->args;
    const int32_t dtype = a->d_inv_freq || a->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    const char *sums = a->d_inv_freq ? (const void *)a->d_inv_freq : a->d_freqs;
    for (int64_t i = 0; i < expected->angle_count; i++) {
        const reference_sum *sum = &expected->angles[i];
        const void *address = sums + (size_t)i * number_size(dtype);
        if (!sum->exists || !sum->terms) /* must be exactly 0 on both devices */
            continue;
        const double cpu = number_load(dtype, address), gpu = number_load(dtype, on_device(r, address));
        double allowed = two_ulp(dtype, cpu) + 2 * (double)(sum->terms + 8) * 0x1p-53 * sum->magnitude;
        if (a->dtype == TROPE_F64)
            allowed = fmax(allowed, sum->tolerance);
        t->sums++;
        t->worst_sum = fmax(t->worst_sum, fabs(cpu - gpu) / (2 * number_half_ulp(dtype, cpu)));
        forgive(r, dtype, address, allowed);
    }
}

static void forgive_weights(const results *r, const reference_result *expected, tally *t)
{
    const int32_t dtype = r->args->dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
    for (int i = 0; i < r->args->operand_count; i++)
        for (int64_t j = 0; expected->weights[i] && j < reference_weights(r->args, i); j++) {
            const reference_sum *sum = &expected->weights[i][j];
            const char *address = (const char *)r->args->norms[i]->d_weight + (size_t)j * number_size(dtype);
            unsigned char *element = on_device(r, address);
            t->weights++;
            if (fabsl(number_load(dtype, element) - sum->value) <= sum->tolerance &&
                (sum->terms || !number_bits(dtype, element)))
                memcpy(element, address, number_size(dtype));
        }
}

static int has_weights(const trope_args *args)
{
    for (int i = 0; i < args->operand_count; i++)
        if (reference_norm(args, i) && args->norms[i]->d_weight)
            return 1;
    return 0;
}

/* ---- one call ---- */

static unsigned char *run_on_device(tally *t, config *c, const call *k, int backward)
{
    config_reset(c);
    const trope_status status = device_run(t->arena, c, k, backward);
    CHECK_MESSAGE(status == TROPE_OK, "seed 0x%llx: %s", (unsigned long long)c->seed, trope_last_error());
    count_kernel(t);
    return snapshot(c);
}

static int is_same_twice(tally *t, config *c, const call *k, const results *r)
{
    free(run_on_device(t, c, k, r->backward));
    return is_snapshot(c, r->device);
}

static void check_call(tally *t, config *c, int backward)
{
    call k = config_call(c, backward);
    results r = {.c = c, .args = call_args(&k), .backward = backward};
    const int sums = r.args->d_freqs || r.args->d_inv_freq || has_weights(r.args), is_f64 = r.args->dtype == TROPE_F64;
    r.device = run_on_device(t, c, &k, backward);
    if (sums)
        check_parity(c, is_same_twice(t, c, &k, &r), "cuda_parity, second run");
    config_reset(c);
    reference_result expected = {.status = 0};
    if (sums || is_f64)
        expected = reference_run(r.args, backward);
    run_call(r.args, backward);
    if (is_f64)
        forgive_f64(&r, &expected, t);
    if (sums) {
        forgive_sums(&r, &expected, t);
        forgive_weights(&r, &expected, t);
    }
    check_parity(c, is_snapshot(c, r.device), backward ? "cuda_parity, backward" : "cuda_parity, forward");
    t->poisoned += r.args->status && *r.args->status & TROPE_STATUS_POSITION;
    reference_free(&expected);
    free(r.device);
}

/* ---- seeds ---- */

/* An option and its possible values. Each seed draws one of them. */
typedef struct pick {
    uint8_t option, count, values[10];
} pick;

#define PICK(OPTION, ...)                                                                                                  \
    {                                                                                                                      \
        OPTION_##OPTION, sizeof((uint8_t[]){__VA_ARGS__}),                                                                 \
        {                                                                                                                  \
            __VA_ARGS__                                                                                                    \
        }                                                                                                                  \
    }

/* A kind of config that random options rarely produce. It gets each seed with seed % every == rest. `times` and `sequences`
 * set the same fields of config_choices. */
typedef struct kind {
    uint64_t every, rest;
    int is_typical;
    pick picks[12];
    pick times, sequences; /* indices into the tables `times` and `sequences`; seeds use them one after another */
} kind;

static const int32_t times[] = {1, 10, 20, 30, 60, 80, 100, 200, 400, 1000},
                     sequences[] = {0, 31, 32, 33, 62, 63, 300, 961, 991, 992, 1024};

/* clang-format off */
static const pick typical[] = {
    PICK(SIZE, SIZE_VECTORS), PICK(ELEMENTS, ELEMENTS_ADJACENT), PICK(ROUNDING, TROPE_ROUND_ONCE), PICK(PARTS, 0),
    PICK(AXES, AXES_PARTS), PICK(CP, 0), PICK(POSITIONS, POSITIONS_INDEX), PICK(GRADIENT, GRADIENT_NONE), {0, 0, {0}}};

#define FAST_DTYPES   PICK(DTYPE, DTYPE_F32, DTYPE_F16, DTYPE_BF16)
#define DENSE_LAYOUTS PICK(LAYOUT, LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD)
#define ANY_SEQUENCES PICK(SEQUENCES, SEQUENCES_NONE, SEQUENCES_EXACT, SEQUENCES_GAPS)
#define FAST_ANGLES   PICK(ANGLES, ANGLES_INV_FREQ, ANGLES_FREQS), PICK(COLUMNS, COLUMNS_PAIR), PICK(TABLE, TABLE_ROWS)

static const kind kinds[] = {
    /* A search needs one round up to some number of sequences, and two rounds up to another. These calls have numbers of
     * sequences around both limits. Many sequences are empty. */
    {64, 21, 1, {FAST_DTYPES, PICK(LAYOUT, LAYOUT_THD), PICK(SEQUENCES, SEQUENCES_EXACT, SEQUENCES_GAPS), FAST_ANGLES,
                 PICK(WINDOW, WINDOW_WHOLE), PICK(HEADS, HEADS_ONE, HEADS_MANY, HEADS_MANY), PICK(OPERANDS, 0, 0, 1),
                 PICK(CU_DTYPE, INDEX_I32)}, {0, 1, {0}},
     {0, 10, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}},
    /* Whole heads, positions from tokens. Blocks have different shapes for few tokens and for many. */
    {64, 5, 1, {PICK(WINDOW, WINDOW_WHOLE), PICK(SEQUENCES, SEQUENCES_NONE), PICK(OPERANDS, 0, 0, 0, 0, 0, 1, 2, 3)},
     {0, 4, {0, 4, 8, 9}}, {0, 1, {0}}},
    /* Tokens with one or a few heads, which rotate as a whole or in a window, mostly in place. A warp processes a whole
     * token, and computes its coefficients without other warps. */
    {64, 37, 1, {FAST_DTYPES, DENSE_LAYOUTS, FAST_ANGLES, PICK(WINDOW, WINDOW_MIDDLE, WINDOW_WHOLE),
                 PICK(PLACE, PLACE_IN, PLACE_IN, PLACE_OUT), PICK(HEADS, HEADS_ONE, HEADS_MANY), PICK(OPERANDS, 0, 1),
                 PICK(SEQUENCES, SEQUENCES_NONE)}, {0, 4, {0, 4, 8, 9}}, {0, 1, {0}}},
    /* Gradients of angles whose table rows follow from the shapes or from a few sequences. */
    {16, 12, 0, {FAST_DTYPES, PICK(LAYOUT, LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD),
                 PICK(SEQUENCES, SEQUENCES_NONE, SEQUENCES_NONE, SEQUENCES_EXACT, SEQUENCES_GAPS),
                 PICK(ANGLES, ANGLES_TABLE, ANGLES_FREQS),
                 PICK(GRADIENT, GRADIENT_ONLY, GRADIENT_TOO, GRADIENT_TOO, GRADIENT_TOO), PICK(SIZE, SIZE_VECTORS),
                 PICK(ELEMENTS, ELEMENTS_ADJACENT), PICK(POSITIONS, POSITIONS_INDEX), PICK(RANGE, RANGE_INSIDE), PICK(CP, 0)},
     {0, 4, {3, 0, 0, 0}}, {0, 1, {0}}},
    /* Windows in place. A token's position is its index in the batch entry or in its sequence. */
    {16, 11, 1, {FAST_DTYPES, DENSE_LAYOUTS, ANY_SEQUENCES, FAST_ANGLES, PICK(WINDOW, WINDOW_FRONT, WINDOW_MIDDLE),
                 PICK(HEADS, HEADS_GROUPS, HEADS_MANY, HEADS_MANY, HEADS_MANY, HEADS_MANY, HEADS_MANY),
                 PICK(OPERANDS, 0, 1, 0), PICK(PLACE, PLACE_IN), PICK(CU_DTYPE, INDEX_I32)},
     {0, 4, {0, 0, 1, 5}}, {0, 1, {0}}},
    /* Whole heads rotate, like those of q and k in most training loops, or are only copied, like those of v. Some calls
     * have packed sequences. One block has heads of all operands. */
    {16, 3, 1, {FAST_DTYPES, DENSE_LAYOUTS, ANY_SEQUENCES, PICK(OPERANDS, 1, 2), PICK(WINDOW, WINDOW_WHOLE),
                PICK(HEADS, HEADS_MANY), PICK(TABLE, TABLE_ROWS), PICK(CU_DTYPE, INDEX_I32)},
     {0, 4, {0, 2, 6, 7}}, {0, 1, {0}}},
    /* The same with norms, also for heads that rotate only a window. */
    {16, 9, 1, {FAST_DTYPES, DENSE_LAYOUTS, ANY_SEQUENCES, FAST_ANGLES, PICK(WINDOW, WINDOW_WHOLE, WINDOW_WHOLE, WINDOW_FRONT),
                PICK(HEADS, HEADS_MANY), PICK(CU_DTYPE, INDEX_I32), PICK(NORM, NORM_ALL, NORM_ALL, NORM_EACH)},
     {0, 4, {0, 2, 6, 7}}, {0, 1, {0}}},
    {64, 53, 0, {PICK(DTYPE, DTYPE_F64), PICK(NORM, NORM_ALL, NORM_EACH, NORM_ALONE), PICK(WEIGHT, WEIGHT_F64)},
     {0, 1, {0}}, {0, 1, {0}}},
};
/* clang-format on */

static int draw_all(const pick *picks, random_state *random, uint8_t (*fixed)[2])
{
    int count = 0;
    for (; picks[count].count; count++) {
        fixed[count][0] = picks[count].option;
        fixed[count][1] = picks[count].values[random_between(random, 0, picks[count].count - 1)];
    }
    return count;
}

/* One in eight configs for the fast paths has few tokens and heads that are too wide for the phase steps of the fast
 * paths. */
static config_choices choose_kind(const kind *k, uint64_t seed)
{
    uint8_t fixed[OPTION_COUNT][2];
    random_state random = {seed};
    const int common = k->is_typical ? draw_all(typical, &random, fixed) : 0;
    const int count = common + draw_all(k->picks, &random, fixed + common);
    config_choices choices = config_choose_with(seed, (const uint8_t(*)[2])fixed, count);
    choices.times = times[k->times.values[seed / k->every % k->times.count]];
    choices.sequences = sequences[k->sequences.values[seed / k->every % k->sequences.count]];
    if (k->is_typical && seed / 128 % 8 == 3) {
        choices.pairs = 136 + (int32_t)(seed / 1024 % 16) * 8;
        choices.times = 1;
    }
    return choices;
}

/* Half of the other configs can use whole vectors, and some have many tokens. */
static config_choices choose(uint64_t seed)
{
    static const uint8_t layouts[] = {LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD};
    const uint8_t vectors[][2] = {
        {OPTION_SIZE, SIZE_VECTORS}, {OPTION_ELEMENTS, ELEMENTS_ADJACENT}, {OPTION_LAYOUT, layouts[seed / 2 % 4]}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (seed % kinds[i].every == kinds[i].rest)
            return choose_kind(&kinds[i], seed);
    config_choices choices = config_choose_with(seed, vectors, seed % 2 ? 3 : 0);
    if (choices.value[OPTION_GRADIENT] == GRADIENT_NONE && choices.value[OPTION_D_WEIGHT] == D_WEIGHT_NONE &&
        choices.value[OPTION_DTYPE] != DTYPE_F64)
        choices.specials = (int32_t)(seed / 2 % 2);
    choices.times = seed % 20 == 7 ? 40 : 1;
    return choices;
}

static void print_tally(const tally *t, uint64_t count)
{
    printf("%llu configurations, forward and backward; %ld calls with poisoned positions\n", (unsigned long long)count,
           t->poisoned);
    for (int i = 0; i < MAX_KERNELS && t->kernels[i].calls; i++)
        printf("    %-44s %6ld calls\n", t->kernels[i].name, t->kernels[i].calls);
    printf("f64: %ld elements; %ld differ by more than 2 ulp, but within the bound\n", t->f64_elements, t->f64_beyond);
    printf("%ld elements of d_freqs and d_inv_freq, largest difference %.3g ulp; %ld elements of d_weight\n", t->sums,
           t->worst_sum, t->weights);
    for (int option = 0; option < OPTION_COUNT && count >= ENOUGH; option++)
        for (int value = 0; value < config_value_count(option); value++)
            CHECK_MESSAGE(t->hits[option][value] > 0, "%s=%s was never tested", config_option_name(option),
                          config_value_name(option, value));
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 10000);
    device_require();
    tally t = {.arena = device_arena_new(device_option(argc, argv, "--separate", 0) != 0)};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        const config_choices choices = choose(seed);
        config *c = config_make(seed, &choices);
        t.arena->align = seed % 8 < 6;
        for (int option = 0; option < OPTION_COUNT; option++)
            t.hits[option][choices.value[option]]++;
        for (int backward = 0; backward < 2; backward++)
            check_call(&t, c, backward);
        config_free(c);
    }
    device_arena_free(t.arena);
    print_tally(&t, seeds.count);
    return check_result();
}
