/* A program that was compiled with the header of 0.2.0 gives the same results as with the current header. */
#include <string.h>

#include "api/caller.h"
#include "support/check.h"
#include "trope/trope.h"

int main(void)
{
    static caller_results old, today;
    caller_of_0_2(&old);
    caller_of_today(&today);
    CHECK(old.minor_version == 2 && today.minor_version == TROPE_VERSION_MINOR);
    CHECK(old.args_size == offsetof(trope_args, norms) && today.args_size == sizeof(trope_args));
    CHECK_MESSAGE(!old.failures, "%d calls fail with the header of 0.2, the first: %s", old.failures, old.failure);
    CHECK_MESSAGE(!today.failures, "%d calls fail with the current header, the first: %s", today.failures, today.failure);
    CHECK(old.count > CALLER_BYTES / 4 && old.count == today.count);
    CHECK(!memcmp(old.bytes, today.bytes, CALLER_BYTES));
    printf("%zu bytes of results compared\n", old.count);
    return check_result();
}
