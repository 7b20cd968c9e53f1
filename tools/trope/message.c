/* One line on standard error for everything that is refused. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "command.h"

#define LINE_SIZE  6144
#define NAME_WIDTH 64 /* of a tensor's name: a file may hold any */

static const char *command_name = "trope";

void complain_as(const char *command)
{
    command_name = command;
}

/* Names come from files and from the command line: whatever could end or disturb the line is replaced. */
static void print_line(char *line)
{
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    fprintf(stderr, "%s: %s\n", command_name, line);
}

int complain(const char *format, ...)
{
    char line[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    print_line(line);
    return RESULT_REFUSED;
}

int complain_about(const char *file, const char *tensor, const char *format, ...)
{
    char line[LINE_SIZE];
    if (tensor)
        snprintf(line, sizeof line, "%.4096s: tensor '%.*s': ", file, NAME_WIDTH, tensor);
    else
        snprintf(line, sizeof line, "%.4096s: ", file);
    const size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - used, format, arguments);
    va_end(arguments);
    print_line(line);
    return RESULT_REFUSED;
}
