/* The thread's last error. */
#ifndef TROPE_CORE_ERROR_H
#define TROPE_CORE_ERROR_H

#include "trope/trope.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records a message and returns `status`, so that a check is one line: return trope_fail(TROPE_ERROR_..., "...", ...).
 * The message is "function: argument ...": what stands after the colon is what trope_last_error_argument() gives, unless it
 * begins with a capital. Numbers are written as in the C locale. */
__attribute__((format(printf, 2, 3))) trope_status trope_fail(trope_status status, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
