#define ISA_NAME avx2
#define ISA_ID   TROPE_ISA_AVX2
#include "fwd/cpu/tokens_isa.h"
