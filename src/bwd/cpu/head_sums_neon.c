#define ISA_NAME neon
#define ISA_NEON
#include "bwd/cpu/head_sums_isa.h"
