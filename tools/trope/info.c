/* trope info: shows the features of this build and of this machine. */
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "trope/trope.h"

int command_info(int argc, char **argv)
{
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        printf("usage: trope info\n");
        return RESULT_OK;
    }
    if (argc > 1)
        return complain("takes no arguments, got '%.64s'", argv[1]);
    const char *text = trope_info();
    const size_t length = strlen(text);
    printf("%s%s", text, length && text[length - 1] == '\n' ? "" : "\n");
    return RESULT_OK;
}
