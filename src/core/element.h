/* Sizes of elements and of indices. */
#ifndef TROPE_CORE_ELEMENT_H
#define TROPE_CORE_ELEMENT_H

#include <stdint.h>

#include "core/host_device.h"
#include "trope/trope.h"

/* The size of an element of a valid dtype, in bytes. */
TROPE_HD int32_t trope_element_size(int32_t dtype)
{
    return dtype == TROPE_F64 ? 8 : dtype == TROPE_F32 ? 4 : 2;
}

/* The size of an index (TROPE_I32, TROPE_I64), in bytes. */
TROPE_HD int32_t trope_index_size(int32_t dtype)
{
    return dtype == TROPE_I64 ? 8 : 4;
}

/* The dtype of the gradient of a table, for operands of this dtype. */
TROPE_HD int32_t trope_gradient_dtype(int32_t dtype)
{
    return dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
}

#endif
