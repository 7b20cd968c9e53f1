/* Elements on CUDA: their types, the rotation of one pair, and 16-byte vectors of them. */
#ifndef TROPE_CORE_CUDA_ELEMENTS_CUH
#define TROPE_CORE_CUDA_ELEMENTS_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "core/plan.h"
#include "core/rotate.h"

/* ---- one element ---- */

template <int DTYPE> struct elements {
    typedef float real;
    typedef uint16_t type;
};
template <> struct elements<TROPE_F32> {
    typedef float real;
    typedef float type;
};
template <> struct elements<TROPE_F64> {
    typedef double real;
    typedef double type;
};

template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::real to_real(typename elements<DTYPE>::type x)
{
    if constexpr (DTYPE == TROPE_F16)
        return trope_f16_to_f32(x);
    else if constexpr (DTYPE == TROPE_BF16)
        return trope_bf16_to_f32(x);
    else
        return x;
}

template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::type from_real(typename elements<DTYPE>::real x)
{
    if constexpr (DTYPE == TROPE_F16)
        return trope_f32_to_f16(x);
    else if constexpr (DTYPE == TROPE_BF16)
        return trope_f32_to_bf16(x);
    else if constexpr (DTYPE == TROPE_F32)
        return trope_canonical(x);
    else
        return x;
}

/* Rounds to the dtype, as a framework does when it stores the value. */
template <int DTYPE> __device__ __forceinline__ typename elements<DTYPE>::real round_to(typename elements<DTYPE>::real x)
{
    if constexpr (DTYPE == TROPE_F16)
        return trope_round_f16(x);
    else if constexpr (DTYPE == TROPE_BF16)
        return trope_round_bf16(x);
    else
        return x;
}

/* Packs two elements of f16 or bf16. The first one is in the lower half. */
template <int DTYPE> __device__ __forceinline__ uint32_t pack_elements(float first, float second)
{
    return DTYPE == TROPE_F16 ? pack_f16(first, second) : pack_bf16(first, second);
}

/* ---- one pair ---- */

template <int DTYPE> struct pair_types {
    typedef trope_pair pair;
    typedef trope_coefficients coefficients;
};
template <> struct pair_types<TROPE_F64> {
    typedef trope_pair_f64 pair;
    typedef trope_coefficients_f64 coefficients;
};

/* `rounding` is one of TROPE_ROUND_... */
template <int DTYPE>
__device__ __forceinline__ typename pair_types<DTYPE>::pair
rotate_pair(int32_t rounding, typename pair_types<DTYPE>::pair x, typename pair_types<DTYPE>::coefficients t)
{
    if constexpr (DTYPE == TROPE_F64) {
        return rounding == TROPE_ROUND_ONCE ? trope_rotate_once_f64(x, t) : trope_rotate_native_f64(x, t);
    } else {
        if (rounding == TROPE_ROUND_ONCE)
            return trope_rotate_once(x, t);
        if (DTYPE == TROPE_F32 || rounding == TROPE_ROUND_NATIVE_F32)
            return trope_rotate_native_f32(x, t);
        return DTYPE == TROPE_F16 ? trope_rotate_native_f16(x, t) : trope_rotate_native_bf16(x, t);
    }
}

/* ---- vectors ---- */

/* Two vectors of a head: either as they are in memory, or separated into the first and the second elements of some
 * pairs. They are stored as words of at least 32 bits, because a part of a register has no address. */
template <int DTYPE> union vector_pair {
    typedef typename elements<DTYPE>::type element;
    typedef typename elements<DTYPE>::real real;
    typedef std::conditional_t<sizeof(element) == 2, uint32_t, element> word;
    enum { WIDTH = 16 / sizeof(element), WORDS = 16 / sizeof(word) };

    uint4 bits[2];
    word words[2][WORDS];

    __device__ __forceinline__ void load(const char *first, const char *second)
    {
        load_vector(first, &bits[0]);
        load_vector(second, &bits[1]);
    }

    /* Makes the compiler forget the values that it derived from the vectors, so that these values occupy no registers. */
    __device__ __forceinline__ void forget()
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bits[i].x = found_here(bits[i].x);
            bits[i].y = found_here(bits[i].y);
            bits[i].z = found_here(bits[i].z);
            bits[i].w = found_here(bits[i].w);
        }
    }

    __device__ __forceinline__ void store(char *first, char *second) const
    {
        store_vector(first, bits[0]);
        store_vector(second, bits[1]);
    }

    __device__ __forceinline__ void store_first(char *first) const
    {
        store_vector(first, bits[0]);
    }

    __device__ __forceinline__ void fill(element value)
    {
#pragma unroll
        for (int i = 0; i < 2 * WORDS; i++) {
            if constexpr (sizeof(element) == 2)
                words[i / WORDS][i % WORDS] = value | (uint32_t)value << 16;
            else
                words[i / WORDS][i % WORDS] = value;
        }
    }

    /* Returns the first element (0) or the second one (1) of pair e. With INTERLEAVED, the two are neighbours. Otherwise
     * they are in different vectors. */
    template <bool INTERLEAVED> __device__ __forceinline__ real of_pair(int e, int which) const
    {
        if constexpr (sizeof(element) == 2 && INTERLEAVED)
            return to_real<DTYPE>((uint16_t)(words[e / WORDS][e % WORDS] >> 16 * which));
        else if constexpr (sizeof(element) == 2)
            return to_real<DTYPE>((uint16_t)(words[which][e / 2] >> 16 * (e % 2)));
        else if constexpr (INTERLEAVED)
            return words[(2 * e + which) / WORDS][(2 * e + which) % WORDS];
        else
            return words[which][e];
    }

    /* Sets COUNT pairs (2, or all), beginning with pair e. f16 and bf16 are converted two at a time. */
    template <int COUNT, bool INTERLEAVED> __device__ __forceinline__ void set_pairs(int e, const real y[2][COUNT])
    {
#pragma unroll
        for (int i = 0; i < 2 * COUNT; i++) {
            const int which = i % 2, pair = i / 2;
            if constexpr (sizeof(element) == 4 && INTERLEAVED)
                words[(2 * e + i) / WORDS][(2 * e + i) % WORDS] = from_real<DTYPE>(y[which][pair]);
            else if constexpr (sizeof(element) == 4)
                words[which][e + pair] = from_real<DTYPE>(y[which][pair]);
            else if constexpr (INTERLEAVED)
                words[(e + pair) / WORDS][(e + pair) % WORDS] = pack_elements<DTYPE>(y[0][pair], y[1][pair]);
            else if (pair % 2)
                words[which][(e + pair) / 2] = pack_elements<DTYPE>(y[which][pair - 1], y[which][pair]);
        }
    }

    /* Converts interleaved pairs to one vector of first elements and one vector of second elements. */
    __device__ __forceinline__ void separate()
    {
        const vector_pair from = *this;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const word a = from.words[2 * i / WORDS][2 * i % WORDS], b = from.words[2 * i / WORDS][2 * i % WORDS + 1];
            if constexpr (sizeof(element) == 2) {
                words[0][i] = __byte_perm(a, b, 0x5410);
                words[1][i] = __byte_perm(a, b, 0x7632);
            } else {
                words[0][i] = a;
                words[1][i] = b;
            }
        }
    }

    /* Reverses separate(). */
    __device__ __forceinline__ void join()
    {
        const vector_pair from = *this;
#pragma unroll
        for (int i = 0; i < 2 * WORDS; i++) {
            const word a = from.words[0][i / 2], b = from.words[1][i / 2];
            if constexpr (sizeof(element) == 2)
                words[i / WORDS][i % WORDS] = __byte_perm(a, b, i % 2 ? 0x7632 : 0x5410);
            else
                words[i / WORDS][i % WORDS] = i % 2 ? b : a;
        }
    }
};

/* One pair, whose elements may be anywhere in memory. It has the interface of vector_pair. */
template <int DTYPE> struct element_pair {
    typedef typename elements<DTYPE>::type element;
    typedef typename elements<DTYPE>::real real;
    enum { WIDTH = 1 };

    element of[2];

    __device__ __forceinline__ void load(const char *first, const char *second)
    {
        load_element(first, &of[0]);
        load_element(second, &of[1]);
    }

    __device__ __forceinline__ void store(char *first, char *second) const
    {
        *(element *)first = of[0];
        *(element *)second = of[1];
    }

    __device__ __forceinline__ void store_first(char *first) const
    {
        *(element *)first = of[0];
    }

    __device__ __forceinline__ void fill(element value)
    {
        of[0] = of[1] = value;
    }

    template <bool> __device__ __forceinline__ real of_pair(int, int which) const
    {
        return to_real<DTYPE>(of[which]);
    }

    template <int COUNT, bool> __device__ __forceinline__ void set_pairs(int, const real y[2][COUNT])
    {
        of[0] = from_real<DTYPE>(y[0][0]);
        of[1] = from_real<DTYPE>(y[1][0]);
    }

    __device__ __forceinline__ void separate()
    {
    }

    __device__ __forceinline__ void join()
    {
    }
};

template <int DTYPE, bool VECTORS>
using item_pairs = std::conditional_t<VECTORS, vector_pair<VECTORS ? DTYPE : TROPE_F32>, element_pair<DTYPE>>;

#endif
