/* The gradient of the angles over many tokens, on the host only. It equals the sum of the reference to within two ulp
 * and the errors of the terms. It has the same bits for any number of threads and any instruction set. It is exactly 0
 * for an angle that no token uses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck/gradcheck.h"

#define TIMES 60 /* multiplies the number of tokens of the small random calls */

static const int32_t thread_counts[] = {1, 2, 3, 7};
static const int32_t isas[] = {TROPE_ISA_PORTABLE, TROPE_ISA_AVX2, TROPE_ISA_AVX512, TROPE_ISA_NEON};

static config *make(uint64_t seed)
{
    const uint8_t fixed[][2] = {{OPTION_DTYPE, (uint8_t)(seed % 4)},
                                {OPTION_SIZE, SIZE_TINY},
                                {OPTION_GRADIENT, GRADIENT_ONLY},
                                {OPTION_HEADS, HEADS_ONE}};
    config_choices choices = config_choose_with(seed, fixed, 4);
    choices.times = TIMES;
    return config_make(seed, &choices);
}

/* Returns whether the gradient is the same for all thread counts and all instruction sets of this machine. */
static int is_deterministic(config *c)
{
    const void *const gradient = c->args.d_freqs ? (void *)c->args.d_freqs : (void *)c->args.d_inv_freq;
    const config_buffer *const buffer = &c->buffers[config_buffer_of(c, gradient)];
    unsigned char *const first = malloc(buffer->size);
    int same = 1;
    for (int i = 0; i < 16; i++) {
        call k = config_call(c, 1);
        k.args.threads = thread_counts[i % 4];
        k.args.isa = isas[i / 4];
        config_reset(c);
        const trope_status status = config_run(c, call_args(&k), 1);
        if (status == TROPE_ERROR_UNSUPPORTED)
            continue;
        CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error());
        if (i == 0)
            memcpy(first, buffer->bytes, buffer->size);
        same &= !memcmp(first, buffer->bytes, buffer->size);
    }
    free(first);
    return same;
}

int gradcheck_angle_gradient(seed_range seeds)
{
    comparison result = {.elements = 0};
    for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
        config *c = make(seed);
        const int is_right = compare_call(c, 1, &result), is_same = is_deterministic(c);
        CHECK_MESSAGE(is_right, "%s", result.why);
        CHECK_MESSAGE(is_same, "the bits depend on threads or instruction set");
        if (!is_right || !is_same)
            gradcheck_print(c, "angle_gradient");
        config_free(c);
    }
    printf("%ld sums, %ld unused angles\n", result.sums[1], result.sums[0]);
    return check_result();
}
