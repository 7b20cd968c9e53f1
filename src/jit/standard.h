/* What device code uses of the standard headers, for NVRTC, which has none of them. jit/sources.cmake lists the names under
 * which a program finds this file. The types are those of nvcc, so that structs and overloads are the same. */
#ifndef TROPE_JIT_STANDARD_H
#define TROPE_JIT_STANDARD_H

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
typedef long ptrdiff_t;

#define INT32_MAX  0x7fffffff
#define INT32_MIN  (-INT32_MAX - 1)
#define UINT32_MAX 0xffffffffu
#define INT64_MAX  0x7fffffffffffffffl
#define INT64_MIN  (-INT64_MAX - 1)
#define UINT64_MAX 0xfffffffffffffffful
#define NAN        __int_as_float(0x7fffffff)
#ifndef NULL
#define NULL 0
#endif

namespace std
{
template <bool WHICH, class FIRST, class SECOND> struct conditional {
    typedef FIRST type;
};
template <class FIRST, class SECOND> struct conditional<false, FIRST, SECOND> {
    typedef SECOND type;
};
template <bool WHICH, class FIRST, class SECOND> using conditional_t = typename conditional<WHICH, FIRST, SECOND>::type;

template <class FIRST, class SECOND> constexpr bool is_same_v = false;
template <class TYPE> constexpr bool is_same_v<TYPE, TYPE> = true;
} // namespace std

#endif
