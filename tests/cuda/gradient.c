/* The gradient of the angles.
 *
 * Packed sequences: calls have from one to 3000 sequences, with empty sequences, gaps before and after them, and positions
 * without an angle. All bytes equal the CPU's. With invalid cu_seqlens, the gradient does not depend on the previous
 * contents of the workspace.
 *
 * Layouts: the same tensors give the same bits in every layout and with any strides, by the vector kernel or the element
 * kernel. The test checks by the kernel's name that each layout uses the right one.
 *
 *     cuda_gradient [--elements N]        leaves out packed tensors of more than N elements */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_call.h"
#include "cuda/problem.h"
#include "parity/parity.h"
#include "support/number.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static void run_on_device(problem *p)
{
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s: %s", p->k.name, trope_last_error());
    problem_bring(p, NULL);
}

static const unsigned char *found_sums(const problem *p)
{
    return p->found + p->map.regions[REGION_SUMS].at;
}

/* ---- packed sequences ---- */

#define PACKED_F16                     .dtype = TROPE_F16, .layout = TROPE_THD, .gradient = GRADIENT_ALONE
#define HEADS(...)                     .operands = {{__VA_ARGS__, 0}}
#define OWN_ANGLES                     .columns = TROPE_COLUMNS_HALF
#define SEQUENCES(KIND, MOST, LONGEST) .cu_dtype = KIND, .sequences = MOST, .longest = LONGEST

/* `sequences` is the largest number of sequences. */
/* clang-format off */
static const call_case packed[] = {
    {"one vector", PACKED_F16, HEADS(1, 16, 16), SEQUENCES(TROPE_I32, 700, 40), .angles = TABLES},
    {"vectors", PACKED_F16, HEADS(4, 128, 128), SEQUENCES(TROPE_I32, 700, 10), .angles = TABLES},
    {"half of each head, many heads", PACKED_F16, HEADS(32, 128, 64), SEQUENCES(TROPE_I32, 63, 12), .angles = TABLES},
    {"rounds of heads", PACKED_F16, HEADS(128, 128, 128), SEQUENCES(TROPE_I32, 31, 6), .angles = TABLES},
    {"elements", PACKED_F16, HEADS(3, 6, 6), SEQUENCES(TROPE_I32, 700, 40), .angles = TABLES},
    {"an angle for each element", PACKED_F16, HEADS(4, 64, 64), SEQUENCES(TROPE_I32, 700, 10), .angles = TABLES, OWN_ANGLES},
    {"a wide head", PACKED_F16, HEADS(1, 300, 300), SEQUENCES(TROPE_I32, 700, 6), .angles = TABLES},
    {"64 bits", PACKED_F16, HEADS(4, 128, 128), SEQUENCES(TROPE_I64, 700, 10), .angles = TABLES},
    {"long sequences", PACKED_F16, HEADS(2, 16, 16), SEQUENCES(TROPE_I32, 63, 1500), .angles = TABLES},
    {"freqs", PACKED_F16, HEADS(8, 128, 128), SEQUENCES(TROPE_I32, 3000, 5), .angles = FREQS},
    {"freqs per element", PACKED_F16, HEADS(32, 128, 128), SEQUENCES(TROPE_I32, 63, 12), .angles = FREQS, OWN_ANGLES},
    {"freqs, rounds of heads", PACKED_F16, HEADS(128, 128, 128), SEQUENCES(TROPE_I32, 31, 6), .angles = FREQS},
};
/* clang-format on */

static const int64_t counts[] = {1, 2, 29, 30, 31, 62, 63, 255, 509, 510, 511, 700, 1023, 1024, 3000};

/* Replaces some boundaries, so that they decrease or are outside of the stream. */
static void spoil(problem *p, random_state *random)
{
    void *const boundaries = problem_region(p, REGION_CU_SEQLENS);
    for (int64_t i = random_between(random, 0, 2); i <= p->k.sequences; i += random_between(random, 1, 9))
        case_store_index(p->k.cu_dtype, boundaries, i, random_between(random, -p->k.tokens, 2 * p->k.tokens));
    problem_upload(p, NULL);
}

static void check_workspace_independence(problem *p)
{
    const size_t bytes = p->map.regions[REGION_SUMS].bytes;
    unsigned char *const first = malloc(bytes);
    CUDA_MUST(cudaMemset(p->device_workspace, 0xff, p->on_device.args.workspace_size));
    run_on_device(p);
    memcpy(first, found_sums(p), bytes);
    problem_upload(p, NULL);
    CUDA_MUST(cudaMemset(p->device_workspace, 0x11, p->on_device.args.workspace_size));
    run_on_device(p);
    CHECK_MESSAGE(!memcmp(first, found_sums(p), bytes), "%s, %lld invalid sequences: d_freqs depends on the workspace",
                  p->k.name, (long long)p->k.sequences);
    free(first);
}

static void check_packed(call_case k, int64_t sequences, uint64_t seed, int64_t most_elements)
{
    random_state random = {seed};
    k.sequences = sequences;
    k.gap = random_between(&random, 0, 1) ? 50 : 1;
    k.tokens = 2 * k.gap + sequences * (3 * k.longest / 8 + 1);
    k.rows = random_between(&random, 1, 2 * k.longest);
    k.padding = (int32_t)random_between(&random, TROPE_PADDING_ZERO, TROPE_PADDING_ROTATE);
    k.out_of_range = random_between(&random, 0, 3) ? TROPE_RANGE_POISON : TROPE_RANGE_CLAMP;
    if (k.tokens * k.operands[0].heads * k.operands[0].head_dim > most_elements)
        return;
    problem *p = problem_new(&k, seed);
    CHECK_MESSAGE(problem_queue(p, NULL) == TROPE_OK, "%s: %s", k.name, trope_last_error());
    CHECK_MESSAGE(problem_holds(p, NULL),
                  "%s, %lld sequences, %lld tokens, padding %d, out_of_range %d: differs from the CPU", k.name,
                  (long long)sequences, (long long)k.tokens, (int)k.padding, (int)k.out_of_range);
    spoil(p, &random);
    check_workspace_independence(p);
    problem_free(p);
}

/* ---- layouts ---- */

/* The sizes that the gradient is summed over. head_dim is a multiple of 16, so contiguous layouts consist of vectors. */
typedef struct shape {
    int64_t batch, tokens;
    case_operand heads;
} shape;

static const shape shapes[] = {
    {1, 33, {32, 128, 128, 0}}, {1, 37, {8, 64, 64, 0}}, {4, 9, {5, 128, 64, 64}}, {3, 40, {2, 32, 32, 0}},
    {1, 5, {40, 256, 256, 0}},  {2, 7, {24, 96, 96, 0}}, {5, 20, {1, 16, 16, 0}},  {1, 3, {5, 1024, 1024, 0}},
};

typedef enum option { OWN = 1, PACKED = 2, FREQUENCIES = 4, INTERLEAVED = 8, OPTIONS = 16 } option;

/* The order of dimensions, the stride of elements, and the number of elements before the tensor. The first three layouts
 * allow vectors. */
typedef struct layout {
    const char *name;
    int32_t order, step, first;
} layout;

static const layout layouts[] = {
    {"bshd", TROPE_BSHD, 1, 0},
    {"sbhd", TROPE_SBHD, 1, 0},
    {"bhsd", TROPE_BHSD, 1, 0},
    {"bshd, strided", TROPE_BSHD, 2, 0},
    {"sbhd, not aligned", TROPE_SBHD, 1, 1},
    {"bhsd, strided", TROPE_BHSD, 3, 2},
};
enum { VECTOR_LAYOUTS = 3 };

static call_case case_of(int32_t dtype, const shape *s, int options, const layout *l)
{
    call_case k = {.name = l->name,
                   .dtype = dtype,
                   .layout = l->order,
                   .step = l->step,
                   .first = l->first,
                   .batch = s->batch,
                   .tokens = s->tokens,
                   .operands = {s->heads},
                   .gradient = WITH_GRADIENT,
                   .any_numbers = 1,
                   .rows = 40,
                   .pairing = options & INTERLEAVED ? TROPE_PAIRING_INTERLEAVED : 0};
    k.angles = options & FREQUENCIES ? INV_FREQ : FREQS;
    if (options & OWN)
        k.columns = options & INTERLEAVED ? TROPE_COLUMNS_INTERLEAVED : TROPE_COLUMNS_HALF;
    if (options & PACKED) {
        k.cu_dtype = TROPE_I32;
        k.sequences = 2;
        k.padding = TROPE_PADDING_ZERO;
    }
    return k;
}

/* Returns whether the gradient can use vectors, if the layout allows them. */
static int can_be_vectors(int32_t dtype, const shape *s, int options)
{
    return dtype != TROPE_F64 && s->heads.rotary_dim <= 256 && !(options & OWN);
}

static problem *run_layout(int32_t dtype, const shape *s, int options, const layout *l)
{
    const int is_vectors = l < layouts + VECTOR_LAYOUTS && can_be_vectors(dtype, s, options);
    const call_case k = case_of(dtype, s, options, l);
    char kernel[64] = "";
    problem *const p = problem_new(&k, (uint64_t)((s - shapes) * OPTIONS + options));
    run_on_device(p);
    CHECK_MESSAGE(problem_stray_bytes(p) == 0, "%s: the call wrote %zu bytes outside of its results", l->name,
                  problem_stray_bytes(p));
    CHECK(trope_kernel_name(call_args(&p->on_device), 1, kernel, sizeof kernel) == TROPE_OK);
    CHECK_MESSAGE(strstr(kernel, is_vectors ? "vectors" : "elements"), "%s, heads of %d, options %d: unexpected kernel %s",
                  l->name, s->heads.head_dim, options, kernel);
    return p;
}

static void check_layouts(int32_t dtype, const shape *s, int options)
{
    problem *const first = run_layout(dtype, s, options, &layouts[0]);
    call of_first = case_call(&first->k, &first->map, first->found, TROPE_DEVICE_CPU);
    for (size_t i = 1; i < COUNT_OF(layouts); i++) {
        problem *const p = run_layout(dtype, s, options, &layouts[i]);
        call of_this = case_call(&p->k, &p->map, p->found, TROPE_DEVICE_CPU);
        CHECK_MESSAGE(same_elements(call_args(&of_first), call_args(&of_this), 1),
                      "%s, heads of %d, options %d, %s: dx differs", number_name(dtype), s->heads.head_dim, options,
                      layouts[i].name);
        CHECK_MESSAGE(!memcmp(found_sums(first), found_sums(p), p->map.regions[REGION_SUMS].bytes),
                      "%s, heads of %d, options %d, %s: the gradient of the angles differs", number_name(dtype),
                      s->heads.head_dim, options, layouts[i].name);
        problem_free(p);
    }
    problem_free(first);
}

static int is_legal(const shape *s, int options)
{
    return !(options & PACKED && s->batch > 1) && !(options & FREQUENCIES && options & OWN);
}

int main(int argc, char **argv)
{
    device_require();
    const long most_elements = device_option(argc, argv, "--elements", LONG_MAX);
    for (size_t i = 0; i < COUNT_OF(packed); i++)
        for (size_t j = 0; j < COUNT_OF(counts) && counts[j] <= packed[i].sequences; j++)
            check_packed(packed[i], counts[j], i * 100 + j, most_elements);
    for (int32_t dtype = TROPE_F32; dtype <= TROPE_F64; dtype++)
        for (size_t i = 0; i < COUNT_OF(shapes); i++)
            for (int options = 0; options < OPTIONS; options++)
                if (is_legal(&shapes[i], options))
                    check_layouts(dtype, &shapes[i], options);
    return check_result();
}
