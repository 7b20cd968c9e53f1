#define ISA_NAME portable
#define ISA_ID   TROPE_ISA_PORTABLE
#include "fwd/cpu/tokens_isa.h"
