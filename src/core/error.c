#include "core/error.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512], last_argument[64];

/* Prints numbers with decimal points, even if the caller's locale uses commas. The "C" locale is an object that always
 * exists in the C library, so newlocale only returns it. */
static void print_message(const char *format, va_list arguments)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t callers = uselocale(plain);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    uselocale(callers);
    if (plain)
        freelocale(plain);
}

static void find_argument(void)
{
    const char *colon = strstr(last_error, ": ");
    const char *name = colon ? colon + 2 : "";
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789.[]");
    if (length >= sizeof last_argument)
        length = sizeof last_argument - 1;
    memcpy(last_argument, name, length);
    last_argument[length] = 0;
}

trope_status trope_fail(trope_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_message(format, arguments);
    va_end(arguments);
    find_argument();
    return status;
}

const char *trope_last_error(void)
{
    return last_error;
}

const char *trope_last_error_argument(void)
{
    return last_argument;
}

const char *trope_status_name(trope_status status)
{
    static const char *const names[] = {"TROPE_OK",
                                        "TROPE_ERROR_NULL",
                                        "TROPE_ERROR_ARGUMENT",
                                        "TROPE_ERROR_OVERLAP",
                                        "TROPE_ERROR_OVERFLOW",
                                        "TROPE_ERROR_DATA",
                                        "TROPE_ERROR_UNSUPPORTED",
                                        "TROPE_ERROR_DEVICE"};
    const int32_t count = (int32_t)(sizeof names / sizeof names[0]);
    return status >= 0 && status < count ? names[status] : "unknown trope_status";
}
