#include "gradcheck/gradcheck.h"

const char *const gradcheck_program = "gradcheck";
const char *const gradcheck_default_parts[] = {"random",          "covering",       "adjoint", "finite_difference",
                                               "norm_difference", "angle_gradient", NULL};

void gradcheck_start(void)
{
}

trope_status gradcheck_run(config *c, const call *k, int backward)
{
    call on_host = *k;
    return config_run(c, call_args(&on_host), backward);
}
