/* The thread's last error. */
#ifndef TROPE_CORE_ERROR_H
#define TROPE_CORE_ERROR_H

#include "trope/trope.h"

#ifdef __cplusplus
extern "C"
#endif
    /* Records a message and returns `status`, so that a check is one line: return trope_fail(TROPE_ERROR_..., "...", ...). */
    __attribute__((format(printf, 2, 3))) trope_status
    trope_fail(trope_status status, const char *format, ...);

#endif
