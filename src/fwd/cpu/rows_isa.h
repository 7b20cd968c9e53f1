/* All kernels of one instruction set. The file that includes this is compiled with the flags of that instruction set and
 * defines ISA_NAME and ISA_ID; everything here is static but the table at the end. */
#include <stdint.h>
#include <string.h>

#include "core/rotate.h"
#include "fwd/cpu/rows.h"
#include "core/sincos.h"
#include "fwd/cpu/vector_memory.h"
#include "fwd/cpu/vector_rotate.h"
#include "varlen/row.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define STRING_(a)   #a
#define STRING(a)    STRING_(a)

/* Rows whose coefficients are held at a time, and the coefficients they may take together. Few, so that they and what is
 * prefetched stay in an L1 cache and one row's arithmetic hides another's memory. */
#define CHUNK_ROWS         16
#define CHUNK_COEFFICIENTS 4096

/* Heads of up to this many bytes are put together here before they are streamed out. */
#define STAGE_BYTES 8192

/* How many heads ahead windows are prefetched: where they are parts of heads, or heads far apart, hardware does not. */
#define PREFETCH_HEADS 32

static inline void prefetch_run(const char *at, uint64_t ahead, int64_t bytes)
{
    for (int64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const void *)((uintptr_t)at + ahead + (uintptr_t)line));
}

#define REAL   float
#define SUFFIX f32
#include "fwd/cpu/rows_template.h"
#undef REAL
#undef SUFFIX

#define REAL double
#define REAL_IS_DOUBLE
#define SUFFIX f64
#include "fwd/cpu/rows_template.h"

static void rotate_rows(const trope_plan *plan, int64_t begin, int64_t end)
{
    plan->dtype == TROPE_F64 ? rotate_rows_f64(plan, begin, end) : rotate_rows_f32(plan, begin, end);
}

static void row_angles(const trope_plan *plan, const trope_row *row, trope_row_angles *out)
{
    plan->dtype == TROPE_F64 ? row_angles_f64(plan, row, out) : row_angles_f32(plan, row, out);
}

const trope_row_kernels PASTE(trope_rows_, ISA_NAME) = {ISA_ID, STRING(ISA_NAME), rotate_rows, row_angles};
