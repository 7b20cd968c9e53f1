#include "api/dispatch.h"

trope_status trope_backward(const trope_args *args)
{
    return trope_run("trope_backward", args, 1);
}
