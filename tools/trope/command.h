/* The subcommands of the trope program, their exit statuses and their error messages. */
#ifndef TOOLS_TROPE_COMMAND_H
#define TOOLS_TROPE_COMMAND_H

enum {
    RESULT_OK = 0,
    RESULT_DIFFERS = 1, /* a comparison or a check failed */
    RESULT_REFUSED = 2  /* bad usage, a bad file, or a call that the library refused */
};

/* Each command gets the arguments after the program's name, beginning with the command's own name. */
int command_bench(int argc, char **argv);
int command_check(int argc, char **argv);
int command_info(int argc, char **argv);

/* Sets the name that complaints start with, such as "trope apply". */
void complain_as(const char *command);

/* Prints one line on standard error, for any contents of the arguments, and returns RESULT_REFUSED. */
__attribute__((format(printf, 1, 2))) int complain(const char *format, ...);

/* Complains about a file or, if tensor is not NULL, about a tensor in a file. */
__attribute__((format(printf, 3, 4))) int complain_about(const char *file, const char *tensor, const char *format, ...);

#endif
