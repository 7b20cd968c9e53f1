/* Checks in one line, for functions whose first parameter is `function`, the name of the public function. */
#ifndef TROPE_CORE_REQUIRE_H
#define TROPE_CORE_REQUIRE_H

#include "core/error.h"

#define REQUIRE(condition, status, format, ...)                                                                            \
    do {                                                                                                                   \
        if (!(condition))                                                                                                  \
            return trope_fail(status, "%s: " format, function, __VA_ARGS__);                                               \
    } while (0)
#define CHECK(call)                                                                                                        \
    do {                                                                                                                   \
        const trope_status status_ = (call);                                                                               \
        if (status_)                                                                                                       \
            return status_;                                                                                                \
    } while (0)

#endif
