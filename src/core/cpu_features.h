/* Returns whether this CPU and its operating system can run an instruction set (TROPE_ISA_...). */
#ifndef TROPE_CORE_CPU_FEATURES_H
#define TROPE_CORE_CPU_FEATURES_H

#include <stdint.h>

int trope_cpu_has(int32_t isa);

#endif
