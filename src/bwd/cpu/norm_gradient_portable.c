#define ISA_NAME portable
#include "bwd/cpu/norm_gradient_isa.h"
