/* Finds the kernel of each CUDA case of `trope bench`, without a device and without memory. The calls are the bench's
 * calls, but their addresses have no memory.
 *
 * The library must accept each call. With CUDA, each case must run a kernel that the backend lists, and each listed kernel
 * must be run by some case: a kernel that no training call uses is not worth compiling. Kernels whose work no other kernel
 * can do are exceptions (only_way). A build without CUDA checks the same calls as if their memory were host memory.
 *
 *     tools_bench_kernels [--list]    --list prints the kernel of each case */
#include <string.h>

#include "bench_calls.h"
#include "support/check.h"
#ifdef TROPE_CUDA
#include "api/args.h"
#include "api/backend.h"
#include "api/plan.h"
#endif

enum { NAME_SIZE = 128, MAX_KERNELS = 512 };

typedef struct kernel_use {
    int is_listing;
    long cases;
    const char *const *listed;
    int listed_count;
    long uses[MAX_KERNELS]; /* the number of cases that chose each listed kernel */
} kernel_use;

#ifdef TROPE_CUDA
/* Like trope_kernel_name, but without the check for a device. */
static trope_status find_kernel(const bench_made_call *made, char *name)
{
    static trope_call call;
    static trope_planned_call planned;
    trope_status status = trope_copy_call("bench", made->args, &call);
    status = status ? status : trope_validate("bench", &call.args, made->backward);
    if (status)
        return status;
    trope_expand_layouts(&call, made->backward);
    status = trope_validate_memory("bench", &call, made->backward);
    if (status)
        return status;
    trope_make_plan(&call, made->backward, &planned);
    trope_backend_cuda.kernel_name(&planned.plan, name, NAME_SIZE);
    return TROPE_OK;
}
#else
static trope_status find_kernel(const bench_made_call *made, char *name)
{
    trope_args on_host = *made->args;
    on_host.device = TROPE_DEVICE_CPU;
    return trope_kernel_name(&on_host, made->backward, name, NAME_SIZE);
}
#endif

static void count_use(kernel_use *use, const bench_made_call *made, const char *name)
{
    for (int i = 0; i < use->listed_count; i++)
        if (!strcmp(use->listed[i], name)) {
            use->uses[i]++;
            return;
        }
    CHECK_MESSAGE(!use->listed, "%s runs %s, which the backend does not list", made->name, name);
}

static int visit(void *context, const bench_made_call *made)
{
    kernel_use *use = context;
    char name[NAME_SIZE] = "";
    use->cases++;
    if (!CHECK_MESSAGE(!find_kernel(made, name), "%s: %s", made->name, trope_last_error()))
        return 0;
    if (use->is_listing)
        printf("%-48s %s\n", made->name, name);
    CHECK_MESSAGE(name[0], "%s has no kernel", made->name);
    count_use(use, made, name);
    return 0;
}

/* Only the -elements kernels support heads that do not consist of whole vectors. */
static int only_way(const char *name)
{
    return strstr(name, "-elements") != NULL;
}

int main(int argc, char **argv)
{
    static kernel_use use;
    use.is_listing = argc > 1 && !strcmp(argv[1], "--list");
#ifdef TROPE_CUDA
    use.listed = trope_cuda_list_kernels(&use.listed_count);
    if (!CHECK(use.listed && use.listed_count > 0 && use.listed_count <= MAX_KERNELS))
        return check_result();
#endif
    CHECK(!bench_visit_cuda_calls(visit, &use));
    CHECK(use.cases > 0);
    for (int i = 0; i < use.listed_count; i++)
        CHECK_MESSAGE(use.uses[i] || only_way(use.listed[i]), "no case runs %s", use.listed[i]);
    printf("%ld cases, %d kernels listed\n", use.cases, use.listed_count);
    return check_result();
}
