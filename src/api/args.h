/* Argument structs as callers of any age pass them, and as the library uses them. */
#ifndef TROPE_API_ARGS_H
#define TROPE_API_ARGS_H

#include "trope/trope.h"

/* Copies a caller's struct, whose first member is its struct_size, into the library's own of `size` bytes. What an older
 * caller's struct lacks is zero; what a newer one has more must be zero. */
trope_status trope_copy_struct(const char *function, void *to, size_t size, const void *from);

/* Checks everything about a call that can be known on the host without reading device data. `args` has its defaults
 * filled in (trope_fill_defaults). The plan can rely on every one of these. */
trope_status trope_validate(const char *function, const trope_args *args, int backward);

/* The part of trope_validate that concerns positions and sequences, all that trope_positions needs. */
trope_status trope_validate_positions(const char *function, const trope_args *args);

/* The part that concerns pointers: what must be there is there, aligned, within 64 bits, and nothing is written that
 * anything else of the call reads or writes. */
trope_status trope_validate_memory(const char *function, const trope_args *args, int backward);

/* Of that, what concerns position_ids, start_positions and cu_seqlens. */
trope_status trope_validate_index_memory(const char *function, const trope_args *args);

/* Puts the value that a 0 stands for in place of the 0. */
void trope_fill_defaults(trope_args *args);

#endif
