/* What docs/FORMATS.md says of wdx1: limits, alphabets, tables. Included by _wdx.c alone. */
#ifndef WDX_FORMAT_H
#define WDX_FORMAT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little endian, and so is this code; without it the reference works"
#endif

#define TILE_MAX (1u << 20)
#define PROB_BITS 11
#define WHOLE (1u << PROB_BITS)
#define CLASSES_MAX 16
#define ROWS_MAX (CLASSES_MAX + 1)
#define BLOCK 64

enum { KIND_CLASSES = 3, KIND_FLAT = 4 };
enum { MODE_GAPS = 0, MODE_NIBBLES = 1, MODE_HOLES = 2 };

/* Reasons to refuse a payload; extension.py has their words. */
enum reason {
    FINE = 0, NO_MEMORY, STATES_CUT, WORDS_CUT, BITS_CUT, STATES_END, BITS_END, ENDS_DIFFER, COUNT_LARGE, POSITION_LARGE,
    NOTHING, NO_MOVE, NIBBLE_END, KIND_UNKNOWN, NOT_THIS_TILE
};

/* ---- alphabets: numbers below 1 << direct have a token each, above four per octave; the last token is the escape */

#define GAP_DIRECT 3
#define GAP_RAW 20
#define GAP_TOKENS (8 + 4 * (GAP_RAW - GAP_DIRECT) + 1)
#define VALUE_DIRECT 6
#define VALUE_TOKENS_MAX (64 + 4 * (32 - VALUE_DIRECT) + 1)
#define NIBBLE 16

typedef struct {
    uint32_t direct;
    uint32_t tokens; /* the escape included */
    uint32_t base[VALUE_TOKENS_MAX];
    uint8_t extra[VALUE_TOKENS_MAX];
} alphabet;

static void alphabet_make(alphabet *a, uint32_t direct, uint32_t raw) {
    uint32_t t = 0;
    memset(a, 0, sizeof *a);
    a->direct = direct;
    for (; t < 1u << direct; t++) a->base[t] = t;
    for (uint32_t octave = direct; octave < raw; octave++)
        for (uint32_t quarter = 4; quarter < 8; quarter++, t++) {
            a->base[t] = quarter << (octave - 2);
            a->extra[t] = (uint8_t)(octave - 2);
        }
    a->extra[t] = (uint8_t)raw;
    a->tokens = t + 1;
}

static inline uint32_t token_of(uint32_t direct, uint32_t number) {
    if (number < 1u << direct) return number;
    uint32_t octave = 31u - (uint32_t)__builtin_clz(number);
    return (1u << direct) + 4 * (octave - direct) + (number >> (octave - 2) & 3);
}

/* ---- tables, ready to code with */

typedef struct {
    uint64_t reciprocal; /* x / frequency = x * reciprocal >> 64 */
    uint32_t limit;      /* at and above this x, a word is put out first */
    uint32_t bias;
    uint32_t complement; /* WHOLE - frequency; WHOLE = the symbol has no code */
} coded;

typedef struct {
    int width, shift, classes, first;
    uint32_t exponents;
    uint8_t mode[ROWS_MAX];
    uint16_t chance[ROWS_MAX];
    alphabet gaps, values;
    coded write_position[ROWS_MAX][GAP_TOKENS];
    coded write_value[ROWS_MAX][VALUE_TOKENS_MAX];
    uint32_t read_position[ROWS_MAX][WHOLE]; /* frequency << 20 | slot - start << 8 | symbol */
    uint32_t read_value[ROWS_MAX][WHOLE];
} tables;

/* 0 = the frequencies do not sum to WHOLE, or one symbol has them all. */
static int row_make(const uint16_t *frequency, uint32_t symbols, coded *write, uint32_t *read) {
    uint32_t start = 0;
    for (uint32_t s = 0; s < symbols; s++) {
        uint32_t f = frequency[s];
        if (f >= WHOLE || start + f > WHOLE) return 0;
        write[s].complement = WHOLE - f;
        if (f == 0) continue;
        write[s].limit = f << (32 - PROB_BITS);
        write[s].reciprocal = f == 1 ? UINT64_MAX : UINT64_MAX / f + 1;
        write[s].bias = f == 1 ? start + WHOLE - 1 : start; /* x * (2^64 - 1) >> 64 is x - 1 */
        for (uint32_t i = 0; i < f; i++) read[start + i] = f << 20 | i << 8 | s;
        start += f;
    }
    return start == WHOLE;
}

/* ---- a tile to scan */

typedef struct {
    const uint8_t *bits;
    uint32_t size;
    int width, shift, add, sub, top; /* class = min(max(exponent + add - sub, 0), top), saturating at 255 */
    uint32_t mask;
} view;

static view view_of(const tables *t, const void *bits, uint32_t size, int shift) {
    int first = t->first + shift;
    view v = {bits, size, t->width, t->shift, first < 0 ? -first : 0, first < 0 ? 0 : first > 255 ? 255 : first,
              t->classes - 1, t->exponents - 1};
    return v;
}

typedef union { /* of four blocks */
    uint64_t bit[4][4]; /* [j][block]: bit j of the class of each of 64 elements */
    uint32_t half[4][4][2];
} slices;

static inline uint32_t blocks_of(uint32_t size) { return (size + BLOCK - 1) / BLOCK; }

static inline uint32_t groups_of(uint32_t size) { return (size + 4 * BLOCK - 1) / (4 * BLOCK); }

/* Which elements of block b lie within the tile. */
static inline uint64_t valid_of(uint32_t size, uint32_t b) {
    return size - b * BLOCK >= BLOCK ? UINT64_MAX : (1ull << (size - b * BLOCK)) - 1;
}

static inline uint32_t load_bits(const uint8_t *bits, int width, size_t i) {
    uint16_t two;
    uint32_t four;
    switch (width) {
    case 1: return bits[i];
    case 2: memcpy(&two, bits + 2 * i, 2); return two;
    default: memcpy(&four, bits + 4 * i, 4); return four;
    }
}

static inline void store_bits(uint8_t *bits, int width, size_t i, uint32_t value) {
    uint16_t two = (uint16_t)value;
    switch (width) {
    case 1: bits[i] = (uint8_t)value; break;
    case 2: memcpy(bits + 2 * i, &two, 2); break;
    default: memcpy(bits + 4 * i, &value, 4);
    }
}

/* bits[index[k]], for all k */
static void take_bits(const uint8_t *bits, int width, const uint32_t *index, uint32_t count, uint8_t *out) {
    switch (width) {
    case 1: for (uint32_t k = 0; k < count; k++) out[k] = bits[index[k]]; break;
    case 2: for (uint32_t k = 0; k < count; k++) store_bits(out, 2, k, load_bits(bits, 2, index[k])); break;
    default: for (uint32_t k = 0; k < count; k++) store_bits(out, 4, k, load_bits(bits, 4, index[k]));
    }
}

static inline int class_of(const view *v, uint32_t bits) {
    int c = (int)(bits >> v->shift & v->mask) + v->add - v->sub;
    return c < 0 ? 0 : c > v->top ? v->top : c;
}

/* The classes of many elements, without a branch. */
static inline __attribute__((always_inline)) void classes_of_bits(const view *v, const uint8_t *bits, uint32_t count, uint8_t *out) {
#define ALL(width) \
    for (uint32_t k = 0; k < count; k++) { \
        int32_t c = (int32_t)(load_bits(bits, width, k) >> v->shift & v->mask) + v->add - v->sub; \
        c = c < 0 ? 0 : c; \
        out[k] = (uint8_t)(c < v->top ? c : v->top); \
    }
    switch (v->width) {
    case 1: ALL(1) break;
    case 2: ALL(2) break;
    default: ALL(4)
    }
#undef ALL
}

static inline uint32_t width_mask(int width) { return width == 4 ? UINT32_MAX : (1u << 8 * width) - 1; }

static inline uint32_t zigzag(uint32_t difference, int width) {
    uint32_t mask = width_mask(width);
    uint32_t sign = 0u - (difference >> (8 * width - 1) & 1);
    return ((difference << 1) ^ sign) & mask;
}

static inline uint32_t unzigzag(uint32_t folded) { return folded >> 1 ^ (0u - (folded & 1)); }

#endif
