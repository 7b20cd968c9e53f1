/* Prints one line on standard error for each refusal. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "command.h"

#define LINE_SIZE  2048
#define PATH_SIZE  4096
#define NAME_WIDTH 64 /* of a tensor's name, which a file may choose freely */

static const char *command_name = "trope";

void complain_as(const char *command)
{
    command_name = command;
}

/* Names come from files and from the command line. This replaces characters that would end or garble the line. Messages
 * need only ASCII, except in the name of a file. */
static void clean(char *text, int keep_beyond_ascii)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f || (!keep_beyond_ascii && (unsigned char)*c > 0x7f))
            *c = '?';
}

int complain(const char *format, ...)
{
    char line[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    clean(line, 0);
    fprintf(stderr, "%s: %s\n", command_name, line);
    return RESULT_REFUSED;
}

int complain_about(const char *file, const char *tensor, const char *format, ...)
{
    char path[PATH_SIZE], line[LINE_SIZE] = "";
    snprintf(path, sizeof path, "%s", file);
    if (tensor)
        snprintf(line, sizeof line, "tensor '%.*s': ", NAME_WIDTH, tensor);
    const size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - used, format, arguments);
    va_end(arguments);
    clean(path, 1);
    clean(line, 0);
    fprintf(stderr, "%s: %s: %s\n", command_name, path, line);
    return RESULT_REFUSED;
}
