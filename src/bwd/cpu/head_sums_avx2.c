#define ISA_NAME avx2
#include "bwd/cpu/head_sums_isa.h"
