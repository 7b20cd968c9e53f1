#define ISA_NAME portable
#define ISA_ID   TROPE_ISA_PORTABLE
#include "core/rows_isa.h"
