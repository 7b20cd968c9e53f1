#define ISA_NAME avx512
#define ISA_ID   TROPE_ISA_AVX512
#include "bwd/cpu/head_sums_isa.h"
