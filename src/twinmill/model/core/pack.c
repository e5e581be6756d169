/* Matrices in the layout that the products stream: a permutation of the stored bits, so packing loses nothing and
 * unpacking gives back what digests are taken of.
 *
 * F32 lanes lie in order. BF16 lanes i and i + 8 share a 32-bit word, low half and high half: one load, a shift and a mask
 * make two vectors of 8 floats of it.
 */
#include "core.h"

#include <string.h>

static inline int slot16(int lane) { return lane < LANES / 2 ? 2 * lane : 2 * lane - LANES + 1; }
static inline int slot32(int lane) { return lane; }

/* Where lane 0 of row `row`'s panel begins, for column k. */
static inline size_t panel_at(int row, int k, int cols) { return ((size_t)(row / LANES) * cols + k) * LANES; }

#define PACK(BITS)                                                                                                     \
    static void pack##BITS(uint##BITS##_t *packed, int cols, const uint##BITS##_t *bits, int first, int count) {       \
        for (int row = 0; row < count;) {                                                                              \
            const int lane = (first + row) % LANES, left = count - row;                                                \
            const int lanes = left < LANES - lane ? left : LANES - lane;                                               \
            uint##BITS##_t *to = packed + panel_at(first + row, 0, cols);                                              \
            const uint##BITS##_t *from = bits + (size_t)row * cols;                                                    \
            if (lanes == LANES)                                                                                        \
                for (int k = 0; k < cols; k++)                                                                         \
                    for (int i = 0; i < LANES; i++) to[k * LANES + slot##BITS(i)] = from[(size_t)i * cols + k];        \
            else                                                                                                       \
                for (int k = 0; k < cols; k++)                                                                         \
                    for (int i = 0; i < lanes; i++) to[k * LANES + slot##BITS(lane + i)] = from[(size_t)i * cols + k]; \
            row += lanes;                                                                                              \
        }                                                                                                              \
    }
PACK(16)
PACK(32)

void pack_rows(void *packed, int cols, int kind, const void *bits, int first, int count) {
    if (kind == BF16)
        pack16(packed, cols, bits, first, count);
    else
        pack32(packed, cols, bits, first, count);
}

void unpack_rows(const void *packed, int cols, int kind, void *bits, int first, int count) {
    for (int row = 0; row < count; row++) {
        const size_t panel = panel_at(first + row, 0, cols), to = (size_t)row * cols;
        const int lane = (first + row) % LANES;
        for (int k = 0; k < cols; k++) {
            if (kind == BF16)
                ((uint16_t *)bits)[to + k] = ((const uint16_t *)packed)[panel + (size_t)k * LANES + slot16(lane)];
            else
                ((uint32_t *)bits)[to + k] = ((const uint32_t *)packed)[panel + (size_t)k * LANES + slot32(lane)];
        }
    }
}

void packed_row(const Panels *w, int row, float *out) {
    const size_t panel = panel_at(row, 0, w->cols);
    if (w->kind == BF16) {
        const uint16_t *bits = (const uint16_t *)w->data + panel + slot16(row % LANES);
        for (int k = 0; k < w->cols; k++) {
            const uint32_t wide = (uint32_t)bits[(size_t)k * LANES] << 16;
            memcpy(out + k, &wide, sizeof wide);
        }
    } else {
        const float *values = (const float *)w->data + panel + slot32(row % LANES);
        for (int k = 0; k < w->cols; k++) out[k] = values[(size_t)k * LANES];
    }
}
