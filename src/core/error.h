/* The last error of each thread. */
#ifndef TROPE_CORE_ERROR_H
#define TROPE_CORE_ERROR_H

#include "trope/trope.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records a message and returns `status`, so that a check is one line: return trope_fail(TROPE_ERROR_..., "...", ...). The
 * message has the form "function: argument ...". trope_last_error_argument() returns the word after the colon, or "" if
 * that word begins with a capital letter. Numbers are printed as in the C locale. */
__attribute__((format(printf, 2, 3))) trope_status trope_fail(trope_status status, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
