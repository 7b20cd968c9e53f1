#define ISA_NAME avx512
#include "bwd/cpu/head_sums_isa.h"
