/* The level that every processor has: plain vectors, each multiply-add rounded twice. */
#include "core.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#include "lanes_portable.h"

#define TABLE kernels_portable
#define NAME "portable"
#define SHAPES(X) X(1, 1) X(1, 2) X(2, 1) X(3, 1)
#define MOST_ROWS 3
#define MOST_PANELS 2
static const int WIDE[] = {0, 2, 1, 1};
#include "kernels.inc"
