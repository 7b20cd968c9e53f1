/* Sizes of elements and of indices. */
#ifndef TROPE_CORE_ELEMENT_H
#define TROPE_CORE_ELEMENT_H

#include <stdint.h>

#include "core/host_device.h"
#include "trope/trope.h"

/* Bytes of an element of a valid dtype. */
TROPE_HD int32_t trope_element_size(int32_t dtype)
{
    return dtype == TROPE_F64 ? 8 : dtype == TROPE_F32 ? 4 : 2;
}

/* Bytes of an index. */
TROPE_HD int32_t trope_index_size(int32_t dtype)
{
    return dtype == TROPE_I64 ? 8 : 4;
}

/* What gradients of a table are stored as. */
TROPE_HD int32_t trope_gradient_dtype(int32_t dtype)
{
    return dtype == TROPE_F64 ? TROPE_F64 : TROPE_F32;
}

#endif
