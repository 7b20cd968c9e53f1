/* The CPU's bits on the GPU: random calls, forward and backward, every byte that they could have written. None is refused.
 *
 * f32, f16 and bf16 are equal bit for bit, poison, padding, infinities and NaNs included. Of f64, whose sines come from the
 * device's own library, an element may be off by two ulp or, where the two products of a pair cancel, by the bound of
 * support/reference.h. The gradient of the angles is summed in double in another order, so there two ulp are granted beside
 * what n additions in double may leave; run twice, it has the same bits.
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

typedef struct tally {
    device_arena *arena;
    struct {
        char name[64];
        long calls;
    } kernels[MAX_KERNELS];
    long f64_elements, f64_beyond, sums, poisoned;
    double worst_sum; /* in ulp */
} tally;

static void count_kernel(tally *t)
{
    int i = 0;
    while (i < MAX_KERNELS - 1 && t->kernels[i].calls && strcmp(t->kernels[i].name, t->arena->kernel))
        i++;
    memcpy(t->kernels[i].name, t->arena->kernel, sizeof t->kernels[i].name);
    t->kernels[i].calls++;
}

/* ---- what may differ ---- */

/* The bytes of a config's buffers as the device left them, beside those of the CPU in the config itself. */
typedef struct results {
    const config *c;
    const trope_args *args;
    int backward;
    unsigned char *device;
} results;

/* The device's counterpart of an address in a buffer. */
static unsigned char *on_device(const results *r, const void *address)
{
    size_t at = 0;
    const int buffer = config_buffer_of(r->c, address);
    for (int i = 0; i < buffer; i++)
        at += r->c->buffers[i].size;
    return r->device + at + ((const unsigned char *)address - r->c->buffers[buffer].bytes);
}

/* Whether the device's element is as near to the CPU's as it must be; if so it is replaced by that, so that what is left
 * can be compared bit for bit. */
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

static void forgive_f64(const results *r, const reference_result *expected, tally *t)
{
    for (int i = 0; i < r->args->operand_count; i++) {
        const tensor dst = tensor_of(r->args, i, TENSOR_DST, r->backward);
        for (int64_t j = 0; dst.base && j < tensor_count(&dst); j++) {
            const reference_element *e = &expected->operands[i][j];
            const double *address = (const double *)dst.base + tensor_offset(&dst, j);
            if (e->kind == REFERENCE_NAN)
                forgive(r, TROPE_F64, address, 0); /* some NaN */
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
        if (!sum->exists || !sum->terms) /* exactly 0 on both */
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
    const int sums = r.args->d_freqs || r.args->d_inv_freq, is_f64 = r.args->dtype == TROPE_F64;
    r.device = run_on_device(t, c, &k, backward);
    if (sums)
        check_parity(c, is_same_twice(t, c, &k, &r), "cuda_parity, twice");
    config_reset(c);
    reference_result expected = {.status = 0};
    if (sums || is_f64)
        expected = reference_run(r.args, backward);
    run_call(r.args, backward);
    if (is_f64)
        forgive_f64(&r, &expected, t);
    if (sums)
        forgive_sums(&r, &expected, t);
    check_parity(c, is_snapshot(c, r.device), backward ? "cuda_parity, backward" : "cuda_parity, forward");
    t->poisoned += r.args->status && *r.args->status & TROPE_STATUS_POSITION;
    reference_free(&expected);
    free(r.device);
}

/* ---- seeds ---- */

/* A config of the options `own`, whole vectors, and otherwise usual rows, with `times` the tokens, and as many sequences as
 * in config_choices. Every eighth has wider heads than phase steps of usual kernels are for, and few tokens. */
static config *make_usual(uint64_t seed, const uint8_t (*own)[2], int count, int32_t times, int32_t sequences)
{
    static const uint8_t usual[][2] = {{OPTION_SIZE, SIZE_VECTORS},         {OPTION_ELEMENTS, ELEMENTS_ADJACENT},
                                       {OPTION_ROUNDING, TROPE_ROUND_ONCE}, {OPTION_PARTS, 0},
                                       {OPTION_AXES, AXES_PARTS},           {OPTION_CP, 0},
                                       {OPTION_POSITIONS, POSITIONS_INDEX}, {OPTION_GRADIENT, GRADIENT_NONE}};
    uint8_t all[OPTION_COUNT][2];
    memcpy(all, usual, sizeof usual);
    memcpy((uint8_t *)all + sizeof usual, own, (size_t)count * sizeof *own);
    config_choices choices = config_choose_with(seed, all, (int)(sizeof usual / sizeof *usual) + count);
    choices.times = times;
    choices.sequences = sequences;
    if (seed / 128 % 8 == 3) {
        choices.pairs = 136 + (int32_t)(seed / 1024 % 16) * 8;
        choices.times = 1;
    }
    return config_make(seed, &choices);
}

#define USUAL(SEED, OWN, TIMES, SEQUENCES) make_usual(SEED, OWN, sizeof(OWN) / sizeof *(OWN), TIMES, SEQUENCES)

static const uint8_t usual_layouts[] = {LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD},
                     usual_dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16},
                     usual_sequences[] = {SEQUENCES_NONE, SEQUENCES_EXACT, SEQUENCES_GAPS};

/* Whole heads, rows from the tokens: blocks of other shapes for few rows and for many. */
static config *make_whole(uint64_t seed)
{
    static const int32_t times[] = {1, 60, 400, 1000};
    const uint8_t operands = seed / 256 % 2 ? 0 : (uint8_t)(seed / 512 % 4);
    const uint8_t whole[][2] = {
        {OPTION_WINDOW, WINDOW_WHOLE}, {OPTION_SEQUENCES, SEQUENCES_NONE}, {OPTION_OPERANDS, operands}};
    return USUAL(seed, whole, times[seed / 64 % 4], 0);
}

/* Operands that are rotated whole, as q and k in most training loops, or only copied, as v, packed or not: one block has
 * heads of all of them. */
static config *make_several(uint64_t seed)
{
    static const int32_t times[] = {1, 20, 100, 200};
    random_state random = {seed};
    const uint8_t several[][2] = {{OPTION_DTYPE, usual_dtypes[random_between(&random, 0, 2)]},
                                  {OPTION_LAYOUT, usual_layouts[random_between(&random, 0, 2)]},
                                  {OPTION_SEQUENCES, usual_sequences[random_between(&random, 0, 2)]},
                                  {OPTION_OPERANDS, (uint8_t)random_between(&random, 1, 2)},
                                  {OPTION_WINDOW, WINDOW_WHOLE},
                                  {OPTION_HEADS, HEADS_MANY},
                                  {OPTION_TABLE, TABLE_ROWS},
                                  {OPTION_CU_DTYPE, INDEX_I32}};
    return USUAL(seed, several, times[random_between(&random, 0, 3)], 0);
}

/* Windows in place, of rows whose positions are the tokens or indices in sequences. */
static config *make_windows(uint64_t seed)
{
    static const int32_t times[] = {1, 1, 10, 80};
    random_state random = {seed};
    const uint8_t windows[][2] = {{OPTION_DTYPE, usual_dtypes[random_between(&random, 0, 2)]},
                                  {OPTION_LAYOUT, usual_layouts[random_between(&random, 0, 2)]},
                                  {OPTION_SEQUENCES, usual_sequences[random_between(&random, 0, 2)]},
                                  {OPTION_ANGLES, random_between(&random, 0, 1) ? ANGLES_FREQS : ANGLES_INV_FREQ},
                                  {OPTION_WINDOW, random_between(&random, 0, 1) ? WINDOW_MIDDLE : WINDOW_FRONT},
                                  {OPTION_HEADS, random_between(&random, 0, 5) ? HEADS_MANY : HEADS_GROUPS},
                                  {OPTION_OPERANDS, random_between(&random, 0, 2) % 2},
                                  {OPTION_COLUMNS, COLUMNS_PAIR},
                                  {OPTION_TABLE, TABLE_ROWS},
                                  {OPTION_PLACE, PLACE_IN},
                                  {OPTION_CU_DTYPE, INDEX_I32}};
    return USUAL(seed, windows, times[random_between(&random, 0, 3)], 0);
}

/* Rows of one head or few, whole or a window in place: a warp has all of a row, and finds what it needs alone. */
static config *make_rows(uint64_t seed)
{
    static const int32_t times[] = {1, 60, 400, 1000};
    random_state random = {seed};
    const int is_window = (int)random_between(&random, 0, 1);
    const uint8_t rows[][2] = {{OPTION_DTYPE, usual_dtypes[random_between(&random, 0, 2)]},
                               {OPTION_LAYOUT, usual_layouts[random_between(&random, 0, 2)]},
                               {OPTION_ANGLES, random_between(&random, 0, 1) ? ANGLES_FREQS : ANGLES_INV_FREQ},
                               {OPTION_WINDOW, is_window ? WINDOW_MIDDLE : WINDOW_WHOLE},
                               {OPTION_PLACE, is_window || random_between(&random, 0, 1) ? PLACE_IN : PLACE_OUT},
                               {OPTION_HEADS, (uint8_t)random_between(&random, HEADS_ONE, HEADS_MANY)},
                               {OPTION_OPERANDS, (uint8_t)random_between(&random, 0, 1)},
                               {OPTION_SEQUENCES, SEQUENCES_NONE},
                               {OPTION_COLUMNS, COLUMNS_PAIR},
                               {OPTION_TABLE, TABLE_ROWS}};
    return USUAL(seed, rows, times[seed / 64 % 4], 0);
}

/* As many sequences as one look at the boundaries can tell apart, or two, and around where the first look is at those that
 * should be near; many are empty. */
static config *make_sequences(uint64_t seed)
{
    static const int32_t counts[] = {31, 32, 33, 62, 63, 300, 961, 991, 992, 1024};
    random_state random = {seed};
    const uint8_t packed[][2] = {{OPTION_DTYPE, usual_dtypes[random_between(&random, 0, 2)]},
                                 {OPTION_LAYOUT, LAYOUT_THD},
                                 {OPTION_SEQUENCES, usual_sequences[random_between(&random, 1, 2)]},
                                 {OPTION_ANGLES, random_between(&random, 0, 1) ? ANGLES_FREQS : ANGLES_INV_FREQ},
                                 {OPTION_WINDOW, WINDOW_WHOLE},
                                 {OPTION_HEADS, random_between(&random, 0, 2) ? HEADS_MANY : HEADS_ONE},
                                 {OPTION_OPERANDS, random_between(&random, 0, 2) == 2},
                                 {OPTION_COLUMNS, COLUMNS_PAIR},
                                 {OPTION_TABLE, TABLE_ROWS},
                                 {OPTION_CU_DTYPE, INDEX_I32}};
    return USUAL(seed, packed, 1, counts[random_between(&random, 0, 9)]);
}

/* Gradients of angles whose rows follow from the shapes or from few sequences, of which random options leave few. */
static config *make_gradient(uint64_t seed)
{
    random_state random = {seed};
    const uint8_t layout = (uint8_t)random_between(&random, 0, 3);
    const uint8_t gradient[][2] = {
        {OPTION_DTYPE, usual_dtypes[random_between(&random, 0, 2)]},
        {OPTION_LAYOUT, layout < 3 ? usual_layouts[layout] : LAYOUT_THD},
        {OPTION_SEQUENCES, layout < 3 ? SEQUENCES_NONE : usual_sequences[random_between(&random, 1, 2)]},
        {OPTION_ANGLES, random_between(&random, 0, 1) ? ANGLES_FREQS : ANGLES_TABLE},
        {OPTION_GRADIENT, random_between(&random, 0, 3) ? GRADIENT_TOO : GRADIENT_ONLY},
        {OPTION_SIZE, SIZE_VECTORS},
        {OPTION_ELEMENTS, ELEMENTS_ADJACENT},
        {OPTION_POSITIONS, POSITIONS_INDEX},
        {OPTION_RANGE, RANGE_INSIDE},
        {OPTION_CP, 0}};
    config_choices choices = config_choose_with(seed, gradient, sizeof gradient / sizeof *gradient);
    choices.times = random_between(&random, 0, 3) ? 1 : 30;
    return config_make(seed, &choices);
}

/* Half of the configs are such that whole vectors can be moved, and some have many rows. */
static config *make(uint64_t seed)
{
    if (seed % 64 == 21)
        return make_sequences(seed);
    if (seed % 64 == 5)
        return make_whole(seed);
    if (seed % 64 == 37)
        return make_rows(seed);
    if (seed % 16 == 12)
        return make_gradient(seed);
    if (seed % 16 == 11)
        return make_windows(seed);
    if (seed % 16 == 3)
        return make_several(seed);
    static const uint8_t layouts[] = {LAYOUT_SBHD, LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_THD};
    const uint8_t vectors[][2] = {
        {OPTION_SIZE, SIZE_VECTORS}, {OPTION_ELEMENTS, ELEMENTS_ADJACENT}, {OPTION_LAYOUT, layouts[seed / 2 % 4]}};
    config_choices choices = config_choose_with(seed, vectors, seed % 2 ? 3 : 0);
    if (choices.value[OPTION_GRADIENT] == GRADIENT_NONE && choices.value[OPTION_DTYPE] != DTYPE_F64)
        choices.specials = (int32_t)(seed / 2 % 2);
    choices.times = seed % 20 == 7 ? 40 : 1;
    return config_make(seed, &choices);
}

static void print_tally(const tally *t, uint64_t count)
{
    printf("%llu configurations, forward and backward; %ld calls with poisoned positions\n", (unsigned long long)count,
           t->poisoned);
    for (int i = 0; i < MAX_KERNELS && t->kernels[i].calls; i++)
        printf("    %-44s %6ld calls\n", t->kernels[i].name, t->kernels[i].calls);
    printf("f64: %ld elements, of which %ld differ by more than 2 ulp, within the bound\n", t->f64_elements, t->f64_beyond);
    printf("%ld sums of d_freqs and d_inv_freq, worst difference %.3g ulp\n", t->sums, t->worst_sum);
}

int main(int argc, char **argv)
{
    const seed_range seeds = parse_seeds(argc, argv, 10000);
    device_require();
    tally t = {.arena = device_arena_new(device_option(argc, argv, "--separate", 0) != 0)};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        config *c = make(seed);
        t.arena->align = seed % 8 < 6;
        for (int backward = 0; backward < 2; backward++)
            check_call(&t, c, backward);
        config_free(c);
    }
    device_arena_free(t.arena);
    print_tally(&t, seeds.count);
    return check_result();
}
