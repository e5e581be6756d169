/* Matrices in the layout that the products stream: a permutation of the stored bits, so packing loses nothing and
 * unpacking gives back what digests are taken of. */
#include "core.h"

#include <string.h>

#define PACK(NAME, TYPE)                                                                                          \
    static void NAME(TYPE *packed, int cols, const TYPE *bits, int first, int count) {                            \
        int row = 0;                                                                                              \
        for (; row < count && (first + row) % LANES; row++)                                                       \
            for (int k = 0; k < cols; k++) packed[place(first + row, k, cols)] = bits[(size_t)row * cols + k];    \
        for (; row + LANES <= count; row += LANES) {                                                              \
            const TYPE *from = bits + (size_t)row * cols;                                                         \
            TYPE *to = packed + place(first + row, 0, cols);                                                      \
            for (int k = 0; k < cols; k++)                                                                        \
                for (int lane = 0; lane < LANES; lane++) to[k * LANES + lane] = from[(size_t)lane * cols + k];    \
        }                                                                                                         \
        for (; row < count; row++)                                                                                \
            for (int k = 0; k < cols; k++) packed[place(first + row, k, cols)] = bits[(size_t)row * cols + k];    \
    }

static inline size_t place(int row, int k, int cols) {
    return ((size_t)(row / LANES) * cols + k) * LANES + row % LANES;
}

PACK(pack16, uint16_t)
PACK(pack32, uint32_t)

void pack_rows(void *packed, int cols, int kind, const void *bits, int first, int count) {
    if (kind == BF16)
        pack16(packed, cols, bits, first, count);
    else
        pack32(packed, cols, bits, first, count);
}

void unpack_rows(const void *packed, int cols, int kind, void *bits, int first, int count) {
    for (int row = 0; row < count; row++)
        for (int k = 0; k < cols; k++) {
            size_t from = place(first + row, k, cols), to = (size_t)row * cols + k;
            if (kind == BF16)
                ((uint16_t *)bits)[to] = ((const uint16_t *)packed)[from];
            else
                ((uint32_t *)bits)[to] = ((const uint32_t *)packed)[from];
        }
}

void packed_row(const Panels *w, int row, float *out) {
    size_t from = place(row, 0, w->cols);
    if (w->kind == BF16) {
        const uint16_t *bits = (const uint16_t *)w->data + from;
        for (int k = 0; k < w->cols; k++) {
            uint32_t wide = (uint32_t)bits[(size_t)k * LANES] << 16;
            memcpy(out + k, &wide, sizeof wide);
        }
    } else {
        const float *values = (const float *)w->data + from;
        for (int k = 0; k < w->cols; k++) out[k] = values[(size_t)k * LANES];
    }
}
