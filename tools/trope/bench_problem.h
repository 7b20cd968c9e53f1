/* What the files of a problem share: bench_problem.c has its sizes, bench_bind.c the call, bench_fill.c what is in the
 * memory, bench_indices.c cu_seqlens, ids and starts. */
#ifndef TOOLS_TROPE_BENCH_PROBLEM_H
#define TOOLS_TROPE_BENCH_PROBLEM_H

#include "bench.h"

/* Elements of a head of BENCH_MLA_KV: of K those that are not rotated, those that are, and of V. */
enum { MLA_NOPE = 128, MLA_PE = 64, MLA_V = 128 };

/* Axes of ids, and of a table that has some. */
enum { BENCH_AXES = 3 };

/* Fields of a case, with what a 0 stands for in its place. */
int32_t bench_head_dim(const bench_case *c);
int32_t bench_rotary_dim(const bench_case *c);
int32_t bench_batch(const bench_case *c);
int32_t bench_ranks(const bench_case *c);
int32_t bench_layout(const bench_case *c);
int32_t bench_index_dtype(const bench_case *c);

int bench_is_qkv(const bench_case *c);
/* Cos and sin, not freqs. */
int bench_has_cos_and_sin(const bench_case *c);
/* The forward call's input, and scratch: gradients of angles and weights need both. */
int bench_reads_forward(const bench_case *c);
/* Of a gradient of weights. */
int32_t bench_weight_gradient_dtype(const bench_problem *p);
/* Position axes of the ids, 0 = there are no ids. */
int32_t bench_id_axes(const bench_case *c);
/* 1, or with BENCH_TABLE_OWN_AXES a table for each axis and batch entry. */
int64_t bench_tables(const bench_case *c);

int32_t bench_angle_dtype(const bench_problem *p);
/* Rows of one of them. */
int64_t bench_table_rows(const bench_problem *p);

int64_t bench_all_tokens(const bench_problem *p); /* over the batch */
/* Bytes of a tensor that has so many elements a token. */
int64_t bench_tensor_bytes(const bench_problem *p, int64_t elements);

/* Sets sequences, padding and longest. */
void bench_count_sequences(bench_problem *p);
/* Writes cu_seqlens, cu_seqlens_padded, and ids or starts: those that the case has. */
void bench_write_indices(const bench_problem *p, void *const *area);
/* How many of the ids or starts there are. */
int64_t bench_index_count(const bench_problem *p);

#endif
