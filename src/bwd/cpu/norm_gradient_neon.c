#define ISA_NAME neon
#define ISA_NEON
#include "bwd/cpu/norm_gradient_isa.h"
