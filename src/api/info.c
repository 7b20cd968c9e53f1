#include <stdio.h>
#include <string.h>

#include "core/rows.h"
#include "core/threads.h"
#include "trope/trope.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)

const char *trope_version(void)
{
    return STRING(TROPE_VERSION_MAJOR) "." STRING(TROPE_VERSION_MINOR) "." STRING(TROPE_VERSION_PATCH);
}

size_t trope_sizeof(const char *struct_name)
{
    static const struct {
        const char *name;
        size_t size;
    } structs[] = {
        {"trope_args", sizeof(trope_args)},
        {"trope_operand", sizeof(trope_operand)},
        {"trope_frequency_args", sizeof(trope_frequency_args)},
    };
    for (size_t i = 0; struct_name && i < sizeof structs / sizeof structs[0]; i++)
        if (!strcmp(struct_name, structs[i].name))
            return structs[i].size;
    return 0;
}

const char *trope_info(void)
{
    static _Thread_local char text[512];
    int used = snprintf(text, sizeof text, "version: %s\nbackends: cpu\ninstruction sets:", trope_version());
    for (int32_t isa = TROPE_ISA_AVX512; isa >= TROPE_ISA_PORTABLE; isa--) {
        const trope_row_kernels *kernels = trope_find_row_kernels(isa);
        if (kernels)
            used += snprintf(text + used, sizeof text - (size_t)used, " %s", kernels->name);
    }
    snprintf(text + used, sizeof text - (size_t)used, "\nthreads: %d\ndevices: none\n", trope_default_threads());
    return text;
}
