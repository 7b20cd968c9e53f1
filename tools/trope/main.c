/* trope: the command line of the library. One subcommand per file. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "output.h"
#include "trope/trope.h"

/* Tells users of the old `trope apply` where it is now. */
static int command_apply(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return complain("has moved to the Python package: use 'python -m trope apply'");
}

typedef struct command {
    const char *name;
    const char *complains_as;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command commands[] = {
    {"apply", "trope apply", command_apply, "moved to 'python -m trope apply'"},
    {"bench", "trope bench", command_bench, "time each case and a copy of the same bytes"},
    {"check", "trope check", command_check, "check values and gradients for a shape"},
    {"info", "trope info", command_info, "print version, backends, instruction sets, threads and devices"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static int print_usage(void)
{
    printf("usage: trope COMMAND [OPTION...]\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        printf("  %-8s%s\n", commands[i].name, commands[i].summary);
    printf("\n'trope COMMAND --help' or 'trope help COMMAND' lists the options of a command. Exit status: 0 success, 1 a\n"
           "comparison found a difference, 2 refused or failed, with one line on standard error.\n");
    return RESULT_OK;
}

/* Runs the command that argv[0] names. */
static int run_command(int argc, char **argv)
{
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (!strcmp(argv[0], commands[i].name)) {
            complain_as(commands[i].complains_as);
            return commands[i].run(argc, argv);
        }
    }
    return complain("'%.64s' is not a command; 'trope --help' lists them", argv[0]);
}

static int run(int argc, char **argv)
{
    char *help[] = {argc > 2 ? argv[2] : NULL, (char *)(uintptr_t) "--help", NULL};
    if (argc < 2)
        return complain("a command is missing; 'trope --help' lists them");
    const int is_help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
    const int is_version = !strcmp(argv[1], "--version");
    if ((is_help && argc > 3) || (is_version && argc > 2))
        return complain("%s: takes %s, got '%.64s'", argv[1], is_help ? "one command" : "no arguments", argv[argc - 1]);
    if (is_version) {
        printf("trope %s\n", trope_version());
        return RESULT_OK;
    }
    if (is_help)
        return argc > 2 ? run_command(2, help) : print_usage();
    return run_command(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    return run_program(run, argc, argv);
}
