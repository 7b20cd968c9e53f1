#define ISA_NAME avx512
#include "bwd/cpu/norm_gradient_isa.h"
