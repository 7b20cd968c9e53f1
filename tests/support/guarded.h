/* Puts the memory of a call between inaccessible pages, so that a read or write of one byte beyond it raises a signal.
 * This needs no sanitizer, and it also detects vector loads and assembly.
 *
 *     call k = config_call(c, backward);
 *     guarded_depart(c, &k);                       its pointers become invalid addresses, and each buffer gets its own home
 *     ... change the pointers, or call functions that access no data ...
 *     guarded_arrive(c, &k, backward, side)        gives each home exactly the memory that the call needs, filled from c
 *     ... trope_forward(call_args(&k)) ...
 *     guarded_return(c);                           copies what was written to c's buffers
 *
 * A home is the place for one buffer or struct between two inaccessible pages. Only one call at a time can use the
 * homes. */
#ifndef TESTS_SUPPORT_GUARDED_H
#define TESTS_SUPPORT_GUARDED_H

#include <stddef.h>
#include <stdint.h>

#include "support/call.h"
#include "support/config.h"

/* The side on which an inaccessible page directly follows the memory. */
typedef enum guarded_side { GUARDED_BELOW, GUARDED_ABOVE } guarded_side;

/* These homes follow the homes of a config's buffers. They hold its host arrays, the structs, and a test's own memory. */
enum {
    GUARDED_INV_FREQ = CONFIG_MAX_BUFFERS,
    GUARDED_PHASE_STEP,
    GUARDED_PAIR_AXIS,
    GUARDED_ARGS,
    GUARDED_OPERANDS,
    GUARDED_NORMS, /* the array of pointers to norms */
    GUARDED_NORM,  /* the norm of operand 0; the other norms follow */
    GUARDED_FIRST_FREE = GUARDED_NORM + TROPE_MAX_OPERANDS,
    GUARDED_HOMES = GUARDED_FIRST_FREE + 4
};
#define GUARDED_CAPACITY ((size_t)1 << 22) /* the size of a home in bytes */

/* Returns memory of `size` bytes next to the inaccessible page of a home, or NULL if the home is too small. */
unsigned char *guarded_bytes(int home, size_t size, guarded_side side);

/* The same, filled with the bytes at `from`. */
void *guarded_copy(int home, const void *from, size_t size, guarded_side side);

/* An invalid address that stands for the byte at `offset` in the buffer of `home`. guarded_arrive replaces it. */
uintptr_t guarded_nowhere(int home, int64_t offset);

/* Makes each pointer of k an address that no processor can access. Pointers into the same buffer of c keep the distance
 * between them. */
void guarded_depart(const config *c, call *k);

/* Gives the host arrays memory, for the pairs of the widest valid rotary_dim of the call. */
void guarded_arrive_host(const config *c, call *k, guarded_side side);

/* Gives the call its memory, including the host arrays. Each home gets the range of bytes that the call may access
 * there. The sizes of the call must be valid. If c's buffer is smaller, its content is repeated. Returns whether the homes
 * are large enough. */
int guarded_arrive(const config *c, call *k, int backward, guarded_side side);

/* Copies the bytes that belong to c's buffers back to them. */
void guarded_return(const config *c);

/* guarded_remember saves the memory of the call, and up to 256 bytes beside it. guarded_is_remembered returns whether
 * the bytes beside it are unchanged and, with contents != 0, whether the memory of the call is unchanged too. */
void guarded_remember(void);
int guarded_is_remembered(int contents);

#endif
