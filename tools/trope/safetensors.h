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
    void *data;          /* aligned to 64 bytes; NULL before safetensors_load, or of the caller */
} safetensor;

typedef struct safetensors {
    const char *path; /* the caller's */
    int descriptor;   /* from one open: header and data are of one file, even if another takes its name meanwhile */
    int32_t count;
    safetensor *tensors; /* in the order of their bytes */
    char *metadata;      /* the JSON text of __metadata__, or NULL */
    uint64_t data_start; /* offset of the first tensor byte in the file */
} safetensors;

/* Opens the file, reads and checks the header. Returns nonzero after a complaint. safetensors_free is due in any case. */
int safetensors_open(const char *path, safetensors *file);
/* Reads the bytes of a tensor into `data`. Returns nonzero after a complaint. */
int safetensors_read(const safetensors *file, const safetensor *tensor, void *data);
/* The same into memory of the tensor, which safetensors_free frees. */
int safetensors_load(const safetensors *file, safetensor *tensor);
/* The first bytes of a file that has the same tensors in the same order. For free(); NULL without memory. */
char *safetensors_header(const safetensors *file, size_t *size);
void safetensors_free(safetensors *file);

uint64_t safetensor_bytes(const safetensor *tensor);
/* NULL if there is no tensor of that name. */
safetensor *safetensors_find(const safetensors *file, const char *name);
/* "F32 [2, 3]" into text, of at least SAFETENSORS_TEXT bytes; returns text. */
#define SAFETENSORS_TEXT 192
const char *safetensor_describe(const safetensor *tensor, char *text);
/* A name that occurs twice in a JSON object, or NULL. */
struct cJSON;
const char *safetensors_duplicate_name(const struct cJSON *object);
/* Memory for bytes, aligned to 64, or NULL. For free(). */
void *aligned_bytes(uint64_t bytes);

#endif
