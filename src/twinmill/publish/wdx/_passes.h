/* Compare, scatter, digest, statistics: what needs no entropy coder. */
#ifndef WDX_PASSES_H
#define WDX_PASSES_H

#include "_paths.h"

/* target[index[k]] = bits[k], for all k */
static void put_bits_at(uint8_t *target, int width, const uint32_t *index, uint32_t count, const uint8_t *bits) {
    switch (width) {
    case 1: for (uint32_t k = 0; k < count; k++) target[index[k]] = bits[k]; break;
    case 2: for (uint32_t k = 0; k < count; k++) memcpy(target + 2 * (size_t)index[k], bits + 2 * (size_t)k, 2); break;
    default: for (uint32_t k = 0; k < count; k++) memcpy(target + 4 * (size_t)index[k], bits + 4 * (size_t)k, 4);
    }
}

/* ---- compare */

#define CHUNK_BLOCKS 256 /* both tiles' chunks lie in the first level cache */

typedef struct {
    uint32_t *index;
    uint8_t *old, *new;
    uint32_t count, room;
} changes;

static int changes_grow(changes *c, uint32_t more, int width) {
    if (c->count + more <= c->room) return 1;
    uint32_t room = 2 * c->room + more;
    uint32_t *index = realloc(c->index, (size_t)room * sizeof *index);
    if (index) c->index = index;
    uint8_t *old = realloc(c->old, (size_t)room * width);
    if (old) c->old = old;
    uint8_t *new = realloc(c->new, (size_t)room * width);
    if (new) c->new = new;
    if (!index || !old || !new) return 0;
    c->room = room;
    return 1;
}

static void changes_free(changes *c) {
    free(c->index);
    free(c->old);
    free(c->new);
}

/* What differs, in order; 0 = no memory. With `snapshot` (== before), the new bits are written there as well. */
static int compare(const path *p, const uint8_t *before, const uint8_t *after, uint32_t size, int width, uint8_t *snapshot,
                   changes *c) {
    uint64_t words[CHUNK_BLOCKS];
    for (uint32_t first = 0; first < size; first += CHUNK_BLOCKS * BLOCK) {
        uint32_t left = size - first, from = c->count;
        uint32_t blocks = left / BLOCK < CHUNK_BLOCKS ? left / BLOCK : CHUNK_BLOCKS, used = blocks;
        uint32_t ones = p->differ(before + (size_t)first * width, after + (size_t)first * width, width, blocks, words);
        if (blocks < CHUNK_BLOCKS && left % BLOCK) { /* the end of the tile */
            words[used] = 0;
            for (uint32_t i = blocks * BLOCK; i < left; i++) {
                uint64_t differs = load_bits(before, width, first + i) != load_bits(after, width, first + i);
                words[used] |= differs << (i % BLOCK);
                ones += (uint32_t)differs;
            }
            used++;
        }
        if (!changes_grow(c, ones + 4, width)) return 0;
        c->count += p->list_ones(words, used, first, c->index + from);
        const uint32_t *index = c->index + from;
        uint8_t *old = c->old + (size_t)from * width, *new = c->new + (size_t)from * width;
        take_bits(before, width, index, c->count - from, old);
        take_bits(after, width, index, c->count - from, new);
        if (snapshot) put_bits_at(snapshot, width, index, c->count - from, new);
    }
    return 1;
}

/* ---- scatter; 0 = a position outside of the target, nothing written */

static int scatter(uint8_t *target, uint32_t size, int width, const uint32_t *index, const uint8_t *bits, uint32_t count) {
    uint32_t largest = 0;
    for (uint32_t k = 0; k < count; k++) largest = index[k] > largest ? index[k] : largest;
    if (count && largest >= size) return 0;
    put_bits_at(target, width, index, count, bits);
    return 1;
}

/* ---- digest */

#define WIDENED 1024

static void widen(const uint8_t *bits, int width, uint32_t count, uint32_t *wide) {
    switch (width) {
    case 1: for (uint32_t k = 0; k < count; k++) wide[k] = load_bits(bits, 1, k); break;
    case 2: for (uint32_t k = 0; k < count; k++) wide[k] = load_bits(bits, 2, k); break;
    default: memcpy(wide, bits, 4 * (size_t)count);
    }
}

static void digest(const path *p, const uint8_t *bits, int width, uint32_t size, uint64_t halves[2]) {
    uint32_t index[WIDENED], zeros[WIDENED] = {0}, wide[WIDENED];
    halves[0] = size, halves[1] = (uint64_t)width;
    for (uint32_t first = 0; first < size; first += WIDENED) {
        uint32_t count = size - first < WIDENED ? size - first : WIDENED;
        for (uint32_t k = 0; k < count; k++) index[k] = first + k;
        widen(bits + (size_t)first * width, width, count, wide);
        p->digest_moves(index, zeros, wide, count, halves);
    }
}

static void advance(const path *p, const uint32_t *index, const uint8_t *old, const uint8_t *new, int width, uint32_t count,
                    uint64_t halves[2]) {
    uint32_t from[WIDENED], to[WIDENED];
    for (uint32_t first = 0; first < count; first += WIDENED) {
        uint32_t some = count - first < WIDENED ? count - first : WIDENED;
        widen(old + (size_t)first * width, width, some, from);
        widen(new + (size_t)first * width, width, some, to);
        p->digest_moves(index + first, from, to, some, halves);
    }
}

/* ---- statistics: statistics.py says what each array counts */

typedef struct {
    uint64_t *seen, *changed, *gaps, *holes, *nibbles, *values, *flat;
} statistics;

static void gather(const statistics *s, const uint8_t *before, const uint8_t *after, uint32_t size, int width, int shift,
                   uint32_t exponents, uint32_t value_tokens) {
    uint32_t rank[256] = {0}, since_change[256] = {0}, since_hole[256] = {0}, flat = 0;
    uint64_t hits[256] = {0};
    uint8_t nibble[256] = {0};
    for (uint32_t i = 0; i < size; i++, flat++) {
        uint32_t old = load_bits(before, width, i), new = load_bits(after, width, i);
        uint32_t e = old >> shift & (exponents - 1);
        nibble[e] |= (uint8_t)((old != new) << (rank[e] & 3));
        if ((++rank[e] & 3) == 0) s->nibbles[e * NIBBLE + nibble[e]]++, nibble[e] = 0;
        if (old == new) {
            s->holes[e * GAP_TOKENS + token_of(GAP_DIRECT, since_hole[e])]++;
            since_hole[e] = 0;
            since_change[e]++;
            continue;
        }
        hits[e]++;
        s->gaps[e * GAP_TOKENS + token_of(GAP_DIRECT, since_change[e])]++;
        s->flat[token_of(GAP_DIRECT, flat)]++;
        s->values[e * value_tokens + token_of(VALUE_DIRECT, zigzag((new - old) & width_mask(width), width) - 1)]++;
        since_change[e] = 0;
        since_hole[e]++;
        flat = UINT32_MAX; /* 0 at the next element */
    }
    for (uint32_t e = 0; e < exponents; e++) {
        s->seen[e] += rank[e];
        s->changed[e] += hits[e];
        if (rank[e] & 3) s->nibbles[e * NIBBLE + nibble[e]]++;
    }
}

#endif
