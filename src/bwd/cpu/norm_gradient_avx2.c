#define ISA_NAME avx2
#include "bwd/cpu/norm_gradient_isa.h"
