#define ISA_NAME avx512
#define ISA_ID   TROPE_ISA_AVX512
#include "core/rows_isa.h"
