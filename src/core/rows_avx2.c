#define ISA_NAME avx2
#define ISA_ID   TROPE_ISA_AVX2
#include "core/rows_isa.h"
