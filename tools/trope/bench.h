/* trope bench: calls of the library beside a copy of as many bytes. A case says what is called, a problem is one case with
 * sizes and memory, and a device (device.h) says where it runs. */
#ifndef TOOLS_TROPE_BENCH_H
#define TOOLS_TROPE_BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "call_options.h"
#include "device.h"
#include "trope/trope.h"

typedef enum bench_angles {
    BENCH_INV_FREQ = 0,
    BENCH_PHASE_STEP,    /* inv_freq, converted once */
    BENCH_FREQS_HALF,    /* fp32, one column per pair */
    BENCH_FREQS_FULL,    /* fp32, one column per element */
    BENCH_TABLE_HALF,    /* cos and sin, fp32 */
    BENCH_TABLE_FULL,    /* cos and sin, fp32, one column per element */
    BENCH_TABLE_OWN,     /* cos and sin in the operands' dtype, one column per element, as Hugging Face has them */
    BENCH_TABLE_OWN_AXES /* the same for each of three axes, as for Qwen2-VL */
} bench_angles;

typedef enum bench_form {
    BENCH_PLAIN = 0,  /* one tensor in the case's layout */
    BENCH_STRIDED,    /* one tensor [s, b, d, h]: a head's elements are `heads` apart */
    BENCH_Q_AND_K,    /* a tensor each, in the case's layout: K has `groups` heads */
    BENCH_QKV_SPLIT,  /* Q and K rotated and V copied out of [s, b, groups, (q_per_group + 2) * d], to a tensor each */
    BENCH_QKV_INSIDE, /* Q and K rotated in place inside that */
    BENCH_MLA_KV /* kv [s, b, h, 256] and k_pe [s, b, 1, 64] to k [s, b, h, 192], of which the last 64 are k_pe rotated, and
                    v [s, b, h, 128]; backward from the gradients of k and v to those of kv and, summed over heads, k_pe */
} bench_form;

typedef enum bench_positions {
    BENCH_INDEX = 0,      /* of a token in its sequence */
    BENCH_STARTS,         /* the same from a start of each sequence on */
    BENCH_IDS,            /* read, of 64 sequences of equal length */
    BENCH_IDS_DISTINCT,   /* read, all different */
    BENCH_IDS_SECTIONS,   /* read, of three axes in sections (Qwen2-VL) */
    BENCH_IDS_INTERLEAVED /* read, of three axes, pair by pair (Qwen3-VL) */
} bench_positions;

typedef enum bench_lengths {
    BENCH_DENSE = 0, /* no cu_seqlens */
    BENCH_SEQS_OF_1024,
    BENCH_SEQS_OF_4,
    BENCH_SEQS_PARETO, /* from 64 to 16384 tokens, many short and few long */
    BENCH_SEQS_4,      /* so many sequences, of two lengths in turn */
    BENCH_SEQS_64,
    BENCH_SEQS_16384
} bench_lengths;

/* What a row's angles come from. */
typedef struct bench_rows {
    bench_angles angles;
    bench_positions positions;
    bench_lengths lengths;
    int32_t index_dtype; /* of ids, starts and cu_seqlens; 0 = TROPE_I32 */
    int32_t stream;      /* 1: positions go on from one sequence to the next (stream_positions) */
    int32_t padded;      /* 1: a 64th of each sequence's storage is padding, which becomes 0 */
    int32_t cp_size;     /* the last of these ranks; 0 = 1 */
    int32_t cp_layout;   /* 0 = zigzag */
} bench_rows;

#define BENCH_TYPE(dtype) (1 << (dtype))

typedef struct bench_case {
    const char *name;
    int32_t dtypes; /* BENCH_TYPE(...) of each one that it is run with */
    bench_form form;
    int32_t layout;                         /* 0 = TROPE_SBHD, or TROPE_THD with cu_seqlens */
    int32_t batch;                          /* 0 = 1 */
    int32_t heads;                          /* of Q */
    int32_t head_dim;                       /* 0 = 128 */
    int32_t groups;                         /* of heads of Q that share one of K */
    int32_t rotary_dim, rotary_offset;      /* 0 = the whole head */
    int32_t pairing, pairing_out, rounding; /* pairing 0 = half */
    int32_t backward, in_place, angle_gradient, accumulate;
    int32_t
        norm; /* order (TROPE_NORM_...) of the norm of heads that rotate; its weight has their dtype; backward with d_weight */
    int32_t norm_token; /* over tokens, with weights of each head */
    bench_rows rows;
    int64_t tokens; /* per batch entry; 0 = as many as it takes to move those of --bytes */
} bench_case;

typedef struct bench_table {
    const bench_case *cases;
    int count;
} bench_table;

/* The tables of --cases: what the CPU is timed with; the calls that training makes, which CUDA is timed with; and every
 * combination of layout, pairing, window, direction, place and angles. */
bench_table bench_cpu_cases(void);
bench_table bench_cuda_cases(void);
bench_table bench_cross_cases(void);

/* The memory of a problem, on the device and again on the host for the reference. */
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
    AREA_WEIGHT, /* of the norms of all operands, one after the other */
    AREA_D_WEIGHT,
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
    int64_t tokens;          /* per batch entry */
    int64_t sequences;       /* of cu_seqlens */
    int64_t padding;         /* tokens of it */
    int64_t longest;         /* angle rows that are used, of a table that has some for every rank */
    int32_t cols;            /* of a table */
    double moved;            /* bytes, by the rule in docs/performance.md */
    device_runs runs;        /* those of a call in place that leaves out parts of AREA_SRC */
    double sum_slack;        /* what a sum of the gradient of the angles may be off by in another order */
    double weight_slack;     /* the same of the weights' */
    size_t size[AREA_COUNT]; /* bytes of each area */
    double inv_freq[TROPE_MAX_ROTARY_DIM / 2];
    uint64_t phase_step[TROPE_MAX_ROTARY_DIM / 2];
    uint8_t pair_axis[TROPE_MAX_ROTARY_DIM / 2];
} bench_problem;

/* How many bytes cases move: those without a size of their own at least `least`, all of them at most `most`, 0 = any. */
typedef struct bench_sizes {
    double least, most;
} bench_sizes;

/* "case/dtype". */
void bench_name(const bench_case *c, int32_t dtype, char *name, size_t size);
/* Chooses the sizes, and fills in all of the problem. Returns nonzero after a complaint. */
int bench_plan(bench_problem *p, const bench_case *c, int32_t dtype, const bench_sizes *sizes);
/* A call with its operands: do not copy it. */
typedef struct bench_call {
    trope_args args;
    trope_operand operands[3];
    trope_norm norm[3];
    const trope_norm *norms[3];
} bench_call;

/* The call, on areas of memory, which it does not look into. Its device, threads and isa are left to the caller, and so is
 * size[AREA_WORKSPACE], which depends on them. Returns nonzero after a complaint. */
int bench_bind(const bench_problem *p, void *const *area, bench_call *call);
/* Fills the sources, the angles and the indices with what every run of the problem has, and what is written with 0xff. */
void bench_fill(const bench_problem *p, void *const *area, int32_t threads);
/* The area of the operands that the call writes. */
int bench_output_area(const bench_problem *p);

/* What a call is held against: the way that has the least median. */
typedef struct bench_yardstick {
    const char *name; /* NULL = there is none */
    double seconds;
} bench_yardstick;

/* The times of all ways to copy about as many bytes, or to move the same runs of them, as far as they were seen. */
typedef struct bench_standard {
    device_runs runs; /* count 0: of copies */
    double bytes;
    double seconds[DEVICE_MAX_WAYS]; /* the least median of each way, 0 = none yet */
} bench_standard;
typedef struct bench_standards {
    bench_standard *all;
    int count;
} bench_standards;

/* The number of the standard for these runs, or copies, of `bytes`: a new one where none is near. -1 after a complaint. */
int bench_find_standard(bench_standards *standards, const device_runs *runs, double bytes);
/* Which of `count` ways are to be timed beside a case: all of them the first time, then the two best. Returns how many. */
int bench_choose_ways(const bench_standard *standard, int count, int *ways);
/* Keeps the median of a way that took `seconds` for `bytes`. */
void bench_keep_time(bench_standard *standard, int way, double bytes, double seconds);
/* The best of all ways that were seen, for `bytes`. */
bench_yardstick bench_best_way(const bench_standard *standard, const char *const *names, int count, double bytes);

/* Median times of the host, in seconds. */
typedef struct bench_host {
    double call; /* to queue a call, 0 = not measured */
    double over; /* the same less the launch of an empty kernel beside it */
} bench_host;

typedef struct bench_result {
    char name[64]; /* case/dtype */
    char kernel[64];
    double seconds, fastest; /* seconds: the median */
    bench_yardstick copy, move;
    double ratio;   /* copy.seconds / seconds */
    double of_move; /* move.seconds / seconds, 0 = there is none */
    int is_noisy;   /* the copies beside it were */
    int64_t wrong;
    int sets; /* of memory */
    bench_host host;
    int is_one_launch;
    double at_least; /* goal for the ratio, 0 = none */
    double took;     /* seconds for all of the case */
} bench_result;

typedef struct bench_report {
    const tool_device *device;
    int32_t threads, isa, repeat;
    FILE *json; /* or NULL */
    int has_text;
    int argc;
    char **argv;
    int count;
    bench_result *results; /* all so far */
    int refused;           /* cases that the device cannot do */
    int noisy;             /* cases whose copy was disturbed */
    int64_t wrong;
    double worst_ratio;
    char worst[64];
    char first_wrong[64];
} bench_report;

void bench_print_header(const bench_report *report);
/* Keeps the result, too. Returns nonzero after a complaint. */
int bench_print_result(bench_report *report, const bench_problem *p, bench_result *result);
/* For a case that the device cannot do: the library's last error says why. */
void bench_print_refusal(bench_report *report, const bench_result *result);
void bench_print_summary(const bench_report *report);

void bench_json_header(const bench_report *report, const char *machine);
void bench_json_result(const bench_report *report, const bench_problem *p, const bench_result *result);
void bench_json_summary(const bench_report *report);
const char *bench_layout_name(const bench_case *c);

/* The ratio to a copy that a problem has to reach, 0 if none is stated for it. */
double bench_goal(const bench_problem *p);
int bench_is_missed(const bench_result *result);
/* Prints what was reached of the goals, each line after `mark`. */
void bench_print_goals(const bench_report *report, const char *mark);
/* How many goals there were, and how many were missed. The host's time is one: the median, over calls that are one launch,
 * of what they take more than the launch of an empty kernel. */
typedef struct bench_verdict {
    int goals, missed;
    int host_count; /* of the calls, 0 = it was not measured */
    double host_median, host_worst;
} bench_verdict;
bench_verdict bench_judge(const bench_report *report);

/* Everything that a run of several cases needs at a time. */
typedef struct bench_run {
    const machine_options *machine;
    int32_t repeat;
    const tool_device *device;
    bench_memory on_device; /* areas that hold all sets of memory, one after the other */
    bench_memory on_host;
    void *downloaded;     /* as large as the largest area that a problem had when the run began */
    double *seconds;      /* of the call, then of each copy, then of each move */
    double *host_seconds; /* of calls, then of empty launches */
    bench_standards standards;
    bench_report report;
} bench_run;

/* Memory for a problem: before the first one is run, for all of them. Then begin, the problems, and release. All return
 * nonzero after a complaint. */
int bench_reserve(bench_run *run, const bench_problem *p);
int bench_begin(bench_run *run);
int bench_run_problem(bench_run *run, bench_problem *p);
void bench_release(bench_run *run);

#endif
