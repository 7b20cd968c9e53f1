/* trope bench: times calls of the library beside copies of the same number of bytes. A case describes a call, a problem is
 * a case with sizes and memory, and a device (device.h) runs it. */
#ifndef TOOLS_TROPE_BENCH_H
#define TOOLS_TROPE_BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "bench_text.h"
#include "call_options.h"
#include "device.h"
#include "trope/trope.h"

typedef enum bench_angles {
    BENCH_INV_FREQ = 0,
    BENCH_PHASE_STEP,    /* converted once from inv_freq */
    BENCH_FREQS_HALF,    /* fp32, one column per pair */
    BENCH_FREQS_FULL,    /* fp32, one column per element */
    BENCH_TABLE_HALF,    /* cos and sin, fp32 */
    BENCH_TABLE_FULL,    /* cos and sin, fp32, one column per element */
    BENCH_TABLE_OWN,     /* cos and sin in the operands' dtype, one column per element, as in Hugging Face models */
    BENCH_TABLE_OWN_AXES /* the same for each of three axes, as for Qwen2-VL */
} bench_angles;

typedef enum bench_form {
    BENCH_PLAIN = 0,  /* one tensor in the case's layout */
    BENCH_STRIDED,    /* one tensor [s, b, d, h]: a head's elements are `heads` apart */
    BENCH_Q_AND_K,    /* separate tensors in the case's layout; K has `groups` heads */
    BENCH_QKV_SPLIT,  /* rotates Q and K and copies V out of [s, b, groups, (q_per_group + 2) * d], to separate tensors */
    BENCH_QKV_INSIDE, /* rotates Q and K in place inside that tensor */
    BENCH_MLA_KV /* forward: makes k [s, b, h, 192] and v [s, b, h, 128] from kv [s, b, h, 256] and k_pe [s, b, 1, 64]; the
                    last 64 elements of k are the rotated k_pe; backward: makes the gradients of kv and k_pe from those of
                    k and v, and sums the gradient of k_pe over heads */
} bench_form;

typedef enum bench_positions {
    BENCH_INDEX = 0,      /* index of a token in its sequence */
    BENCH_STARTS,         /* the same, counted from a start position of each sequence */
    BENCH_IDS,            /* read positions, of 64 sequences of equal length */
    BENCH_IDS_DISTINCT,   /* read positions, all different */
    BENCH_IDS_SECTIONS,   /* read positions on three axes in sections (Qwen2-VL) */
    BENCH_IDS_INTERLEAVED /* read positions on three axes, interleaved pair by pair (Qwen3-VL) */
} bench_positions;

typedef enum bench_lengths {
    BENCH_DENSE = 0, /* no cu_seqlens */
    BENCH_SEQS_OF_1024,
    BENCH_SEQS_OF_4,
    BENCH_SEQS_PARETO, /* from 64 to 16384 tokens, many short and few long */
    BENCH_SEQS_4,      /* the number of sequences; two lengths alternate */
    BENCH_SEQS_64,
    BENCH_SEQS_16384,
    BENCH_SEQS_GIVEN /* as many as the call's text says */
} bench_lengths;

/* The source of the angles of each token. */
typedef struct bench_source {
    bench_angles angles;
    bench_positions positions;
    bench_lengths lengths;
    int32_t index_dtype; /* of ids, starts and cu_seqlens; 0 = TROPE_I32 */
    int32_t stream;      /* 1: positions continue from one sequence to the next (stream_positions) */
    int32_t padded;      /* 1: 1/64 of each sequence's storage is padding, which becomes 0 */
    int32_t cp_size;     /* number of ranks; the last one is timed; 0 = 1 */
    int32_t cp_layout;   /* 0 = zigzag */
} bench_source;

#define BENCH_TYPE(dtype) (1 << (dtype))

typedef struct bench_case {
    const char *name;
    int32_t dtypes; /* BENCH_TYPE(...) of each dtype that the case runs with */
    bench_form form;
    int32_t layout;                         /* 0 = TROPE_SBHD, or TROPE_THD with cu_seqlens */
    int32_t batch;                          /* 0 = 1 */
    int32_t heads;                          /* of Q */
    int32_t head_dim;                       /* 0 = 128 */
    int32_t groups;                         /* groups of Q heads; each group shares a K head */
    int32_t rotary_dim, rotary_offset;      /* 0 = the whole head */
    int32_t pairing, pairing_out, rounding; /* pairing 0 = half */
    int32_t backward, in_place, angle_gradient, accumulate;
    /* Order (TROPE_NORM_...) of a norm of the rotated heads, or 0. The weight has their dtype; backward has d_weight. */
    int32_t norm;
    int32_t norm_token; /* the norm is over tokens, with a weight for each head */
    bench_source source;
    int64_t tokens;   /* per batch entry; 0 = as many as --bytes allows */
    const char *call; /* the text of the call, which decides everything but name and dtypes; NULL = the fields decide */
} bench_case;

typedef struct bench_table {
    const bench_case *cases;
    int count;
} bench_table;

/* The tables of --cases: the cases that time the CPU; the calls of training, which time CUDA; and every combination of
 * layout, pairing, window, direction, place and angles. */
bench_table bench_cpu_cases(void);
bench_table bench_cuda_cases(void);
bench_table bench_cross_cases(void);

/* The memory of a problem. The host has the same areas as the device, for the reference. */
enum {
    AREA_SRC,
    AREA_DST,
    AREA_FORWARD_SRC,
    AREA_COS, /* or freqs */
    AREA_SIN,
    AREA_INDICES, /* ids or starts */
    AREA_CU_SEQLENS,
    AREA_CU_SEQLENS_PADDED,
    AREA_D_ANGLES,
    AREA_WEIGHT, /* norm weights of all operands, one after the other */
    AREA_D_WEIGHT,
    AREA_WORKSPACE,
    AREA_RSTD, /* of the norms of all operands, like the weights */
    AREA_SUMS,
    AREA_STATUS,
    AREA_TENSORS, /* the areas a, b, ... of a call's text */
    AREA_COUNT = AREA_TENSORS + BENCH_TEXT_AREAS
};
typedef struct bench_memory {
    size_t size[AREA_COUNT];
    void *area[AREA_COUNT];
} bench_memory;

typedef struct bench_problem {
    const bench_case *c;
    int32_t dtype;
    int64_t tokens;          /* per batch entry */
    int64_t sequences;       /* in cu_seqlens */
    int64_t padding;         /* number of padding tokens */
    int64_t longest;         /* number of table rows that a rank uses; the table has the rows of all ranks */
    int32_t cols;            /* of a table */
    double moved;            /* bytes, counted as in docs/performance.md */
    device_runs runs;        /* the touched parts of AREA_SRC, for a call in place that leaves out other parts */
    double sum_slack;        /* allowed difference of a sum in the gradient of the angles, due to the order of additions */
    double weight_slack;     /* the same for the gradient of the weights */
    size_t size[AREA_COUNT]; /* bytes of each area */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    uint64_t phase_step[TROPE_MAX_ROTARY_DIM / 2];
    uint8_t pair_axis[TROPE_MAX_ROTARY_DIM / 2];
    bench_text text;      /* of a case with a text */
    bench_case described; /* what c points to in a case with a text: the properties of the call */
} bench_problem;

/* Limits on the bytes that cases move: at least `least` for cases without a size of their own, and at most `most` for all
 * cases, 0 = no limit. */
typedef struct bench_sizes {
    double least, most;
} bench_sizes;

/* Writes the name "case/dtype". */
void bench_name(const bench_case *c, int32_t dtype, char *name, size_t size);
/* Chooses the sizes and fills in the whole problem. Returns nonzero after a complaint. */
int bench_plan(bench_problem *p, const bench_case *c, int32_t dtype, const bench_sizes *sizes);
/* A call with its operands. Do not copy it: it points into itself. */
typedef struct bench_call {
    trope_args args;
    trope_operand operands[TROPE_MAX_OPERANDS];
    trope_norm norm[TROPE_MAX_OPERANDS];
    const trope_norm *norms[TROPE_MAX_OPERANDS];
} bench_call;

/* Makes the call on areas of memory, without reading them. The caller sets its device, threads and isa, and also
 * size[AREA_WORKSPACE], which depends on them. Returns nonzero after a complaint. */
int bench_bind(const bench_problem *p, void *const *area, bench_call *call);
/* Fills the sources, the angles and the indices with the same numbers in every run, and the outputs with 0xff. */
void bench_fill(const bench_problem *p, void *const *area, int32_t threads);
/* Returns whether the call writes elements of operands to an area. */
int bench_writes_area(const bench_problem *p, int area);

/* The yardstick for a call: the way to copy with the smallest median. */
typedef struct bench_yardstick {
    const char *name; /* NULL = no yardstick */
    double seconds;
} bench_yardstick;

/* The times measured so far for all ways to copy about this many bytes, or to move the same runs. */
typedef struct bench_standard {
    device_runs runs; /* count 0: copies */
    double bytes;
    double seconds[DEVICE_MAX_WAYS]; /* smallest median of each way, 0 = not timed yet */
} bench_standard;
typedef struct bench_standards {
    bench_standard *all;
    int count;
} bench_standards;

/* Returns the index of the standard for these runs (or for copies) of `bytes`, and makes a new one if none is close.
 * Returns -1 after a complaint. */
int bench_find_standard(bench_standards *standards, const device_runs *runs, double bytes);
/* Chooses which of `count` ways to time beside a case: all ways the first time, then the best two. Returns their number. */
int bench_choose_ways(const bench_standard *standard, int count, int *ways);
/* Records the median of a way that took `seconds` for `bytes`. */
void bench_keep_time(bench_standard *standard, int way, double bytes, double seconds);
/* Returns the best of all recorded ways, for `bytes`. */
bench_yardstick bench_best_way(const bench_standard *standard, const char *const *names, int count, double bytes);

/* Median times on the host, in seconds. */
typedef struct bench_host {
    double call; /* time to queue a call, 0 = not measured */
    double over; /* the same, minus the time to launch an empty kernel next to it */
} bench_host;

typedef struct bench_result {
    char name[64]; /* case/dtype */
    char kernel[64];
    double seconds, fastest; /* seconds: the median */
    bench_yardstick copy, move;
    double ratio;   /* copy.seconds / seconds */
    double of_move; /* move.seconds / seconds, 0 = no move */
    int is_noisy;   /* the copies timed beside it varied too much */
    int64_t wrong;
    int sets; /* number of sets of memory */
    bench_host host;
    int is_one_launch;
    double at_least; /* goal for the ratio, 0 = none */
    double took;     /* seconds for the whole case */
} bench_result;

typedef struct bench_report {
    const tool_device *device;
    int32_t threads, isa, repeat;
    FILE *json; /* NULL = no JSON */
    int has_text;
    int argc;
    char **argv;
    int count;
    bench_result *results; /* all results so far */
    int refused;           /* number of cases that the device cannot run */
    int noisy;             /* number of cases whose copy was disturbed */
    int64_t wrong;
    double worst_ratio;
    char worst[64];
    char first_wrong[64];
} bench_report;

void bench_print_header(const bench_report *report);
/* Also keeps the result. Returns nonzero after a complaint. */
int bench_print_result(bench_report *report, const bench_problem *p, bench_result *result);
/* Reports a case that the device cannot run. The reason is the library's last error. */
void bench_print_refusal(bench_report *report, const bench_result *result);
void bench_print_summary(const bench_report *report);

void bench_json_header(const bench_report *report, const char *machine);
void bench_json_result(const bench_report *report, const bench_problem *p, const bench_result *result);
void bench_json_summary(const bench_report *report);
const char *bench_layout_name(const bench_case *c);

/* Returns the smallest acceptable ratio to a copy, or 0 if the problem has no goal. */
double bench_goal(const bench_problem *p);
int bench_is_missed(const bench_result *result);
/* Prints how well the goals were met. Each line begins with `mark`. */
void bench_print_goals(const bench_report *report, const char *mark);
/* The number of goals, and the number of missed goals. One goal limits the host's time: the median over all calls with a
 * single launch, after subtracting the launch of an empty kernel. */
typedef struct bench_verdict {
    int goals, missed;
    int host_count; /* number of calls; 0 = not measured */
    double host_median, host_worst;
} bench_verdict;
bench_verdict bench_judge(const bench_report *report);

/* The state of a run over several cases. */
typedef struct bench_run {
    const machine_options *machine;
    int32_t repeat;
    const tool_device *device;
    bench_memory on_device; /* areas that hold all sets of memory, one after the other */
    bench_memory on_host;
    void *downloaded;     /* as large as the largest area of on_host at bench_begin */
    double *seconds;      /* of the call, then of each copy, then of each move */
    double *host_seconds; /* of calls, then of empty launches */
    bench_standards standards;
    bench_report report;
} bench_run;

/* Call bench_reserve for every problem before the first one runs, then begin, the problems, and release. All functions
 * return nonzero after a complaint. */
int bench_reserve(bench_run *run, const bench_problem *p);
int bench_begin(bench_run *run);
int bench_run_problem(bench_run *run, bench_problem *p);
void bench_release(bench_run *run);

#endif
