#define ISA_NAME portable
#define ISA_ID   TROPE_ISA_PORTABLE
#include "fwd/cpu/rows_isa.h"
