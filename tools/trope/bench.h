/* trope bench: calls of the library beside a copy of as many bytes. A case says what is called, a problem is one case with
 * sizes and memory, and a device (device.h) says where it runs. */
#ifndef TOOLS_TROPE_BENCH_H
#define TOOLS_TROPE_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include "device.h"
#include "trope/trope.h"

typedef enum bench_angles {
    BENCH_INV_FREQ = 0,
    BENCH_FREQS_HALF, /* fp32, one column per pair */
    BENCH_FREQS_FULL, /* fp32, one column per element */
    BENCH_TABLE_HALF, /* cos and sin, fp32 */
    BENCH_TABLE_FULL, /* cos and sin, fp32, one column per element */
    BENCH_TABLE_OWN   /* cos and sin in the operands' dtype, one column per element, as Hugging Face has them */
} bench_angles;

typedef enum bench_form {
    BENCH_PLAIN = 0, /* one tensor in the case's layout */
    BENCH_STRIDED,   /* one tensor [s, b, d, h]: a head's elements are `heads` apart */
    BENCH_QKV_SPLIT, /* Q and K rotated and V copied out of [s, b, groups, (q_per_group + 2) * d], to a tensor each */
    BENCH_QKV_INSIDE /* Q and K rotated in place inside that */
} bench_form;

typedef enum bench_lengths {
    BENCH_DENSE = 0, /* no cu_seqlens */
    BENCH_SEQS_OF_1024,
    BENCH_SEQS_OF_4,
    BENCH_SEQS_PARETO /* from 64 to 16384 tokens, many short and few long */
} bench_lengths;

#define BENCH_TYPE(dtype) (1 << (dtype))

typedef struct bench_case {
    const char *name;
    int32_t dtypes;                    /* BENCH_TYPE(...) of each one that it is run with */
    int32_t layout;                    /* 0 = TROPE_SBHD */
    int32_t batch;                     /* 0 = 1 */
    int32_t heads;                     /* of Q */
    int32_t head_dim;                  /* 0 = 128 */
    int32_t groups;                    /* of packed QKV */
    int32_t rotary_dim, rotary_offset; /* 0 = the whole head */
    int32_t pairing, pairing_out, rounding;
    int32_t backward, in_place, angle_gradient;
    bench_angles angles;
    bench_form form;
    bench_lengths lengths;
} bench_case;

extern const bench_case bench_cases[];
extern const int bench_case_count;

/* The memory of a problem, on the device and again on the host for the reference. */
enum {
    AREA_SRC,
    AREA_DST,
    AREA_INPUT,
    AREA_COS, /* or freqs */
    AREA_SIN,
    AREA_CU_SEQLENS,
    AREA_D_ANGLES,
    AREA_WORKSPACE,
    AREA_COUNT
};
typedef struct bench_memory {
    size_t size[AREA_COUNT];
    void *area[AREA_COUNT];
} bench_memory;

typedef struct bench_problem {
    const bench_case *c;
    int32_t dtype;
    int64_t tokens;    /* per batch entry */
    int64_t sequences; /* of cu_seqlens */
    int64_t rows;      /* angle rows that are used */
    int32_t cols;
    double moved;            /* bytes, by the rule in docs/bench.md */
    size_t size[AREA_COUNT]; /* bytes of each area */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
} bench_problem;

/* Chooses the sizes for at least `bytes` moved, and fills in all of the problem. Returns nonzero after a complaint. */
int bench_plan(bench_problem *p, const bench_case *c, int32_t dtype, double bytes);
/* The call, on areas of memory. Its device, threads and isa are left to the caller, and so is size[AREA_WORKSPACE], which
 * depends on them. */
void bench_bind(const bench_problem *p, void *const *area, trope_args *args);
/* Fills the sources, the angles and cu_seqlens with what every run of the problem has, and what is written with 0xff. */
void bench_fill(const bench_problem *p, void *const *area, int32_t threads);
/* The area that the call writes, and the type of its elements. */
int bench_output_area(const bench_problem *p);

typedef struct bench_result {
    char name[64]; /* case/dtype */
    char kernel[64];
    double seconds, copy_seconds; /* medians */
    double fastest, copy_fastest;
    double ratio; /* copy_seconds / seconds */
    int64_t wrong;
} bench_result;

typedef struct bench_report {
    const tool_device *device;
    int32_t threads, isa, repeat;
    int32_t json;
    int argc;
    char **argv;
    int count;
    int noisy; /* cases whose copy was disturbed */
    int64_t wrong;
    double worst_ratio;
    char worst[64];
    char first_wrong[64];
} bench_report;

void bench_print_header(const bench_report *report);
void bench_print_result(bench_report *report, const bench_problem *p, const bench_result *result);
void bench_print_summary(const bench_report *report);

#endif
