/* Without a device, or with a device that the environment hides, the library loads and works on the CPU. A call for CUDA
 * reports that CUDA is missing, and writes nothing. This test requires neither a GPU nor a build with CUDA. */
#include <stdlib.h>
#include <string.h>

#include "api/valid_call.h"
#include "support/check.h"

typedef trope_status (*entry)(const trope_args *args);

static trope_status kernel_name(const trope_args *args)
{
    char name[64];
    return trope_kernel_name(args, 0, name, sizeof name);
}

static trope_status workspace_size(const trope_args *args)
{
    uint64_t bytes;
    return trope_workspace_size(args, &bytes);
}

static void check_refused(entry run, const char *function)
{
    trope_args *a = call_args(run == trope_forward || run == kernel_name ? dense() : gradient());
    a->device = TROPE_DEVICE_CUDA;
    const trope_status status = run(a);
    CHECK_MESSAGE(status == TROPE_ERROR_UNSUPPORTED || status == TROPE_ERROR_DEVICE,
                  "%s without a device: unexpected status %s", function, trope_status_name(status));
    CHECK_MESSAGE(strstr(trope_last_error(), function) && strstr(trope_last_error(), "CUDA"), "%s: unexpected message '%s'",
                  function, trope_last_error());
    const char *const driver = strstr(trope_info(), "cuda driver: "); /* no such line: the build has no CUDA */
    CHECK_MESSAGE(!driver || strstr(trope_last_error(), "(driver: "), "'%s' does not say why", trope_last_error());
    CHECK(outputs_are_untouched());
}

static void check_runs(int32_t device)
{
    trope_args *a = call_args(dense());
    a->device = device;
    CHECK_MESSAGE(trope_forward(a) == TROPE_OK, "%s", trope_last_error());
    CHECK(!outputs_are_untouched());
    a = call_args(gradient());
    a->device = device;
    CHECK_MESSAGE(trope_backward(a) == TROPE_OK, "%s", trope_last_error());
    CHECK(!outputs_are_untouched());
}

int main(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    for (int again = 0; again < 2; again++) {
        check_refused(trope_forward, "trope_forward");
        check_refused(trope_backward, "trope_backward");
        check_refused(kernel_name, "trope_kernel_name");
        check_refused(workspace_size, "trope_workspace_size");
        check_runs(TROPE_DEVICE_CPU);
        check_runs(TROPE_DEVICE_AUTO);
        CHECK_MESSAGE(strstr(trope_info(), "devices: none\n"), "%s", trope_info());
    }
    return check_result();
}
