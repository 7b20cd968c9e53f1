/* Standard output, and a command's output file. The file is written to a temporary file in the same folder and renamed
 * when it is complete. */
#ifndef TOOLS_TROPE_OUTPUT_H
#define TOOLS_TROPE_OUTPUT_H

#include <stddef.h>

typedef struct output {
    const char *path; /* as on the command line; "-" is standard output */
    char *target;     /* the regular file that path leads to, or the new file; NULL for standard output */
    char *temporary;  /* the file that is being written; NULL if there is none */
    int descriptor;
} output;

/* Runs a program and returns its exit status. The status is RESULT_REFUSED, after a complaint, if text on standard output
 * is lost. Closed standard streams stay unusable: no file or socket gets their numbers. */
int run_program(int (*run)(int argc, char **argv), int argc, char **argv);
/* Writes the buffer of standard output. Returns nonzero after a complaint if any text is lost. */
int output_flush(void);

/* Checks that path can be written and opens a temporary file in its folder. An existing file is found through links and
 * must be regular; the new file will get its mode and owner. Returns nonzero after a complaint. Call output_close in any
 * case. A signal that ends the program removes the temporary file. */
int output_open(output *out, const char *path);
/* Does the same checks and leaves no file. */
int output_is_refused(const char *path);
/* Returns nonzero after a complaint. */
int output_write(output *out, const void *data, size_t bytes);
/* Syncs the file and moves it to its place. Returns nonzero after a complaint, also if text on standard output is lost. An
 * existing file is then unchanged. */
int output_commit(output *out);
/* Removes a file that has not been committed. */
void output_close(output *out);

/* Writes a text and a newline to a file, or to standard output if path is NULL. Returns nonzero after a complaint. */
int output_line(const char *path, const char *text);

#endif
