/* Cubins in files, so that a later process need not compile them. A file that cannot be read or written costs time, never a
 * result.
 *
 * Files are in $TROPE_CACHE, or else in trope/ of $XDG_CACHE_HOME or of $HOME/.cache. The folder must be the user's, and
 * only the user may have access (mode 0700). A second folder, $TROPE_CACHE_READ, is only read. It must be root's or the
 * user's, and nobody else may write to it. */
#ifndef TROPE_JIT_CACHE_H
#define TROPE_JIT_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "jit/compile.h"

/* Everything that decides a cubin, except for its compiler. */
typedef struct trope_cubin_id {
    const void *key;
    size_t key_bytes;
    const char *entry, *program;
    int32_t architecture;
    uint64_t sources; /* trope_hash_of_sources() */
} trope_cubin_id;

typedef enum trope_cache_folder { TROPE_CACHE_OWN, TROPE_CACHE_READ_ONLY, TROPE_CACHE_FOLDERS } trope_cache_folder;

/* Returns whether the folder has an undamaged file with exactly this id. */
int trope_cache_read(trope_cache_folder folder, const trope_cubin_id *id, trope_cubin *cubin);

/* Writes a file into the user's own folder. Other processes see the whole file or none. Returns whether it was written. */
int trope_cache_write(const trope_cubin_id *id, const trope_cubin *cubin);

/* Describes a folder: its path, and if it is not used, why. */
void trope_cache_describe(trope_cache_folder folder, char *text, size_t size);

#endif
