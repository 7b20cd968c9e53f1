/* Shared by the files of a problem: bench_problem.c chooses the sizes, bench_bind.c makes the call, bench_fill.c fills the
 * memory, and bench_indices.c makes cu_seqlens, ids and starts. */
#ifndef TOOLS_TROPE_BENCH_PROBLEM_H
#define TOOLS_TROPE_BENCH_PROBLEM_H

#include "bench.h"

/* Elements of a head of BENCH_MLA_KV: the unrotated and the rotated part of K, and V. */
enum { MLA_NOPE = 128, MLA_PE = 64, MLA_V = 128 };

/* Axes of ids, and of a table with axes. */
enum { BENCH_AXES = 3 };

/* Fields of a case, with 0 replaced by the default. */
int32_t bench_head_dim(const bench_case *c);
int32_t bench_rotary_dim(const bench_case *c);
int32_t bench_batch(const bench_case *c);
int32_t bench_ranks(const bench_case *c);
int32_t bench_layout(const bench_case *c);
int32_t bench_index_dtype(const bench_case *c);

int bench_is_qkv(const bench_case *c);
/* Returns whether the angles are tables of cos and sin instead of freqs. */
int bench_has_cos_and_sin(const bench_case *c);
/* Returns whether backward reads the forward call's input and needs a workspace, for gradients of angles or of weights. */
int bench_reads_forward(const bench_case *c);
/* The dtype of the gradient of the weights. */
int32_t bench_weight_gradient_dtype(const bench_problem *p);
/* Number of position axes of the ids, 0 = no ids. */
int32_t bench_id_axes(const bench_case *c);
/* Number of tables: 1 or, with BENCH_TABLE_OWN_AXES, one for each axis and batch entry. */
int64_t bench_tables(const bench_case *c);

int32_t bench_angle_dtype(const bench_problem *p);
/* Rows of each table. */
int64_t bench_table_rows(const bench_problem *p);

int64_t bench_all_tokens(const bench_problem *p); /* over the batch */
/* Bytes of a tensor with this many elements per token. */
int64_t bench_tensor_bytes(const bench_problem *p, int64_t elements);

/* The same steps for a case with a text. bench_fill_text fills what is no tensor and no weight. */
int bench_plan_text(bench_problem *p, const bench_case *c, int32_t dtype, const bench_sizes *sizes);
void bench_bind_text(const bench_problem *p, void *const *area, bench_call *call);
void bench_fill_text(const bench_problem *p, void *const *area);

/* Sets sequences, padding and longest. */
void bench_count_sequences(bench_problem *p);
/* Writes the arrays that the case has: cu_seqlens, cu_seqlens_padded, and ids or starts. */
void bench_write_indices(const bench_problem *p, void *const *area);
/* Number of ids or starts. */
int64_t bench_index_count(const bench_problem *p);

#endif
