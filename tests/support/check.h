/* Checks that are counted, and reported if they fail. The main function of a test ends with `return check_result();`. */
#ifndef TESTS_SUPPORT_CHECK_H
#define TESTS_SUPPORT_CHECK_H

#include <stdarg.h>
#include <stdio.h>

static long check_passed, check_failed;

/* Counts one check. If it fails, prints its location and the message (only the first 20 times). */
__attribute__((format(printf, 4, 5), unused)) static int check_that(int holds, const char *file, int line,
                                                                    const char *format, ...)
{
    if (holds) {
        check_passed++;
        return 1;
    }
    if (check_failed++ < 20) {
        va_list arguments;
        va_start(arguments, format);
        printf("%s:%d: ", file, line);
        vprintf(format, arguments);
        printf("\n");
        va_end(arguments);
    }
    return 0;
}

#define CHECK(condition)              check_that(!!(condition), __FILE__, __LINE__, "%s", #condition)
#define CHECK_MESSAGE(condition, ...) check_that(!!(condition), __FILE__, __LINE__, __VA_ARGS__)

__attribute__((unused)) static int check_result(void)
{
    printf("%ld checks passed, %ld failed\n", check_passed, check_failed);
    return check_failed || !check_passed;
}

#endif
