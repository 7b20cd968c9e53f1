#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

trope_status trope_fail(trope_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *trope_last_error(void)
{
    return last_error;
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
