/* The record of the calls that a process makes: TROPE_LOG=calls, trope_log_calls and trope_logged_calls. */
#ifndef TROPE_API_LOG_H
#define TROPE_API_LOG_H

#include "trope/trope.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether calls are recorded. The test costs one load. */
int trope_is_logging(void);

/* Records a valid call, and the name of the kernel that runs it. */
void trope_log_call(const trope_args *args, int backward, const char *kernel);

#ifdef __cplusplus
}
#endif
#endif
