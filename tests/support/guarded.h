/* The memory of a call between pages without access: whoever reads or writes one byte beyond it ends with a signal, which
 * needs no sanitizer, and sees loads of vectors and assembly, too.
 *
 *     call k = config_call(c, backward);
 *     guarded_depart(c, &k);                       its pointers are addresses of nothing, each buffer in a home of its own
 *     ... the pointers may be changed, the functions called that look at no data ...
 *     guarded_arrive(c, &k, backward, side)        each home has memory, filled from c, just as much as the call names
 *     ... trope_forward(call_args(&k)) ...
 *     guarded_return(c);                           what was written is in c's buffers
 *
 * One call at a time is there. */
#ifndef TESTS_SUPPORT_GUARDED_H
#define TESTS_SUPPORT_GUARDED_H

#include <stddef.h>
#include <stdint.h>

#include "support/call.h"
#include "support/config.h"

/* On which side of the memory the page without access begins at once. */
typedef enum guarded_side { GUARDED_BELOW, GUARDED_ABOVE } guarded_side;

/* Homes after those of a config's buffers: its host arrays, the structs, and what a test wants for itself. */
enum {
    GUARDED_INV_FREQ = CONFIG_MAX_BUFFERS,
    GUARDED_PHASE_STEP,
    GUARDED_PAIR_AXIS,
    GUARDED_ARGS,
    GUARDED_OPERANDS,
    GUARDED_NORMS, /* the array of pointers to norms */
    GUARDED_NORM,  /* the norm of operand 0; the next ones follow */
    GUARDED_FIRST_FREE = GUARDED_NORM + TROPE_MAX_OPERANDS,
    GUARDED_HOMES = GUARDED_FIRST_FREE + 4
};
#define GUARDED_CAPACITY ((size_t)1 << 22) /* bytes of a home */

/* Memory of `size` bytes at the page of a home; NULL if it has no room for them. */
unsigned char *guarded_bytes(int home, size_t size, guarded_side side);

/* The same, with the bytes of `from`. */
void *guarded_copy(int home, const void *from, size_t size, guarded_side side);

/* An address of nothing: `offset` bytes from where buffer `home` begins, when it has arrived. */
uintptr_t guarded_nowhere(int home, int64_t offset);

/* Makes each pointer of k an address that no processor can access. Those into one buffer of c keep their distance. */
void guarded_depart(const config *c, call *k);

/* Gives the host arrays memory, for the pairs of the widest rotary_dim that a call may have. */
void guarded_arrive_host(const config *c, call *k, guarded_side side);

/* Gives all else memory: for each home from the first to the last byte that the call names there, as the call says it; its
 * sizes must be valid. Where c's buffer is smaller it comes again. Returns whether there was room. */
int guarded_arrive(const config *c, call *k, int backward, guarded_side side);

/* Copies to c's buffers what has become of their bytes. */
void guarded_return(const config *c);

/* Remembers what the call names, and up to 256 bytes beside it; and whether what is beside, and with contents != 0 the call's
 * memory itself, is still that. */
void guarded_remember(void);
int guarded_is_remembered(int contents);

#endif
