/* AVX-512F: 32 registers of 16 floats. */
#include "core.h"

#ifdef HAVE_X86
#ifdef EMULATED_AVX512 /* a header of the tests, for processors without these instructions */
#pragma GCC target("avx2,fma")
#include EMULATED_AVX512
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC target("avx512f")
#endif
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#include "lanes_avx512.h"

#define TABLE kernels_avx512
#define NAME "avx512"
#define SHAPES(X) \
    X(1, 1) X(1, 4) X(1, 8) X(2, 1) X(2, 4) X(3, 1) X(3, 4) X(4, 1) X(4, 4) X(5, 1) X(5, 4) X(6, 1) X(6, 4)
#define MOST_ROWS 6
#define MOST_PANELS 8
static const int WIDE[] = {0, 8, 4, 4, 4, 4, 4};
#include "kernels.inc"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
