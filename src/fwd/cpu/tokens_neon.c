#define ISA_NAME neon
#define ISA_ID   TROPE_ISA_NEON
#define ISA_NEON
#include "fwd/cpu/tokens_isa.h"
