/* Reading and writing the safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes.
 *
 * The reader takes nothing on trust: what the header says is checked against itself and against the file's length before
 * anything is allocated for it. */
#ifndef TOOLS_TROPE_SAFETENSORS_H
#define TOOLS_TROPE_SAFETENSORS_H

#include <stdint.h>

#include "value.h"

#define SAFETENSORS_MAX_RANK   8
#define SAFETENSORS_MAX_HEADER 100000000 /* bytes; that of the format's own reader */

typedef struct safetensor {
    char *name;
    int32_t type; /* value.h */
    int32_t rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    uint64_t elements;
    uint64_t begin, end; /* in bytes, from the end of the header */
    void *data;          /* aligned to 64 bytes; NULL before safetensors_load */
} safetensor;

typedef struct safetensors {
    const char *path; /* the caller's */
    int32_t count;
    safetensor *tensors; /* in the order of their bytes */
    char *metadata;      /* the JSON text of __metadata__, or NULL */
    uint64_t data_start; /* offset of the first tensor byte in the file */
} safetensors;

/* Reads and checks the header. Returns nonzero after a complaint. safetensors_free is due in any case. */
int safetensors_open(const char *path, safetensors *file);
/* Reads the data of all tensors. Returns nonzero after a complaint. */
int safetensors_load(safetensors *file);
/* Writes to a temporary file in the same folder and renames it. Returns nonzero after a complaint, with path untouched. */
int safetensors_write(const safetensors *file);
void safetensors_free(safetensors *file);

/* NULL if there is no tensor of that name. */
safetensor *safetensors_find(const safetensors *file, const char *name);
/* "F32 [2, 3]" into text, of at least SAFETENSORS_TEXT bytes; returns text. */
#define SAFETENSORS_TEXT 192
const char *safetensor_describe(const safetensor *tensor, char *text);
/* Memory for bytes, aligned to 64, or NULL. For free(). */
void *aligned_bytes(uint64_t bytes);

#endif
