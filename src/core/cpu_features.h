/* Which instruction sets this CPU (and operating system) can run. */
#ifndef TROPE_CORE_CPU_FEATURES_H
#define TROPE_CORE_CPU_FEATURES_H

#include <stdint.h>

int trope_cpu_has(int32_t isa);

#endif
