#define ISA_NAME avx512
#define ISA_ID   TROPE_ISA_AVX512
#include "fwd/cpu/tokens_isa.h"
