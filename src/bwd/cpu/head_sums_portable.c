#define ISA_NAME portable
#include "bwd/cpu/head_sums_isa.h"
