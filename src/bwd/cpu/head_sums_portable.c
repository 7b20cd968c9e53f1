#define ISA_NAME portable
#define ISA_ID   TROPE_ISA_PORTABLE
#include "bwd/cpu/head_sums_isa.h"
