#include "api/dispatch.h"

trope_status trope_forward(const trope_args *args)
{
    return trope_run("trope_forward", args, 0);
}
