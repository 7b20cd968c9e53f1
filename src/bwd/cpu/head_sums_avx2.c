#define ISA_NAME avx2
#define ISA_ID   TROPE_ISA_AVX2
#include "bwd/cpu/head_sums_isa.h"
