/* The file that a command writes: beside its place, under another name, until all of it is there. */
#ifndef TOOLS_TROPE_OUTPUT_H
#define TOOLS_TROPE_OUTPUT_H

#include <stddef.h>

typedef struct output {
    const char *path; /* as on the command line; "-" is standard output */
    char *target;     /* the regular file that path leads to, or the new one; NULL for standard output */
    char *temporary;  /* what is written meanwhile; NULL if there is none */
    int descriptor;
} output;

/* Finds out whether path can be written, and opens a file beside it: an existing one is followed through links and has to
 * be regular; the new one will have its mode and owner. Returns nonzero after a complaint. output_close is due in any case.
 * A signal that ends the program removes the file. */
int output_open(output *out, const char *path);
/* Finds out the same, and leaves nothing. */
int output_is_refused(const char *path);
/* Returns nonzero after a complaint. */
int output_write(output *out, const void *data, size_t bytes);
/* Puts the file in its place, once it is on the disk. Returns nonzero after a complaint, with what was there untouched. */
int output_commit(output *out);
/* Removes what has not been committed. */
void output_close(output *out);

/* Makes a file of one text, with the end of its last line; on standard output if path is NULL. Returns nonzero after a
 * complaint. */
int output_line(const char *path, const char *text);

#endif
