/* AVX2 with FMA: 16 registers of 8 floats. */
#include "core.h"

#ifdef HAVE_X86
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#include "lanes_avx2.h"

#define TABLE kernels_avx2
#define NAME "avx2"
#define SHAPES(X) X(1, 1) X(1, 2) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
#define MOST_ROWS 6
#define MOST_PANELS 4
static const int WIDE[] = {0, 4, 2, 2, 1, 1, 1};
#include "kernels.inc"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
