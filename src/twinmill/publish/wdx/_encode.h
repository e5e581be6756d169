/* Tiles of kind 3 and 4 to bytes: reference.py is the specification. Nothing here touches Python objects. */
#ifndef WDX_ENCODE_H
#define WDX_ENCODE_H

#include "_paths.h"
#include "_rans.h"

#define SAMPLED 64

/* ---- what the encoder may choose for a tile */

static int best_shift(const tables *t, const uint8_t *before, uint32_t size, uint32_t changes) {
    uint32_t seen[256] = {0}, sampled = 0, present[256], n = 0;
    uint64_t wanted, least = UINT64_MAX;
    int best = 0;
    if (t->exponents == 1) return 0;
    for (uint32_t i = 0; i < size; i++) {
        if (i % (BLOCK * SAMPLED) == BLOCK) i += BLOCK * (SAMPLED - 1);
        if (i >= size) break;
        seen[load_bits(before, t->width, i) >> t->shift & (t->exponents - 1)]++;
        sampled++;
    }
    for (uint32_t e = 0; e < t->exponents; e++)
        if (seen[e]) present[n++] = e;
    wanted = ((uint64_t)changes << 16) * sampled;
    for (int step = 0; step < 16; step++) { /* 0, -1, 1, -2, 2, ... 7, -8: the nearest of equals */
        int shift = step % 2 ? -(step + 1) / 2 : step / 2;
        view v = view_of(t, before, size, shift);
        uint64_t expected = 0, missed;
        for (uint32_t j = 0; j < n; j++)
            expected += (uint64_t)seen[present[j]] * t->chance[class_of(&v, present[j] << t->shift)];
        expected *= size;
        missed = expected > wanted ? expected - wanted : wanted - expected;
        if (missed < least) least = missed, best = shift;
    }
    return best;
}

static int best_scale(const tables *t, uint32_t size, uint32_t changes) {
    uint64_t expected = (uint64_t)size * t->chance[t->classes], least = UINT64_MAX;
    int best = 0;
    for (int scale = 0; scale < 16; scale++) {
        uint64_t wanted = (uint64_t)changes << (16 + scale);
        uint64_t missed = expected > wanted ? expected - wanted : wanted - expected;
        if (missed < least) least = missed, best = scale;
    }
    return best;
}

/* ---- encode */

typedef struct {
    const tables *t;
    const path *p;
    const uint8_t *before, *old, *new; /* the tile; the bits of its changed elements */
    const uint32_t *index;
    uint32_t size, count;
    uint8_t *classes_k;            /* [count] */
    uint32_t *ranks;               /* [count] which of its class */
    uint32_t sizes[CLASSES_MAX];
    uint8_t *tokens;               /* of all sections, in order of decoding */
    uint32_t section[ROWS_MAX + 1]; /* where the tokens of each class start; then those of the values */
    int lanes;
    bit_writer bits;
} encoder;

static void put_count(bit_writer *w, uint32_t count) {
    uint32_t length = count ? 32u - (uint32_t)__builtin_clz(count) : 0;
    put_bits(w, length, 5);
    if (length > 1) put_bits(w, count & ~(1u << (length - 1)), length - 1);
}

static inline uint8_t put_token(bit_writer *w, const alphabet *a, uint32_t direct, const coded *row, uint32_t number, int scale) {
    uint32_t token = token_of(direct, number >> scale), extra;
    if (row[token].complement == WHOLE) token = a->tokens - 1;
    extra = a->extra[token] + (uint32_t)scale;
    if (extra) put_bits(w, number - ((uint64_t)a->base[token] << scale), extra);
    return (uint8_t)token;
}

/* The gaps between the ones (or, with `invert`, the zeros) of a bitmap. Returns how many. */
static uint32_t put_bitmap_gaps(encoder *e, const uint64_t *bitmap, uint32_t size, uint64_t invert, const coded *row, uint8_t *out) {
    uint32_t next = 0, k = 0;
    for (uint32_t word = 0; word * 64 < size; word++) {
        uint64_t ones = bitmap[word] ^ invert;
        if (size - word * 64 < 64) ones &= (1ull << (size - word * 64)) - 1;
        for (; ones; ones &= ones - 1) {
            uint32_t at = word * 64 + (uint32_t)__builtin_ctzll(ones);
            out[k++] = put_token(&e->bits, &e->t->gaps, GAP_DIRECT, row, at - next, 0);
            next = at + 1;
        }
    }
    return k;
}

static uint32_t put_nibbles(const uint64_t *bitmap, uint32_t size, uint8_t *out) {
    uint32_t count = (size + 3) / 4;
    for (uint32_t i = 0; i < count; i++) out[i] = bitmap[i / 16] >> (i % 16 * 4) & 15;
    return count;
}

/* The bitmaps of all classes, class by class. `order`: the changed elements, those of class 0 first. */
static enum reason put_classes(encoder *e, const uint32_t *order, const uint32_t *starts) {
    const tables *t = e->t;
    uint64_t *bitmap = malloc((e->size / 64 + 2) * sizeof *bitmap);
    uint8_t *out = e->tokens;
    if (!bitmap) return NO_MEMORY;
    for (int c = 0; c < t->classes; c++) {
        const coded *row = t->write_position[c];
        e->section[c] = (uint32_t)(out - e->tokens);
        if (t->mode[c] == MODE_GAPS) {
            uint32_t next = 0;
            for (uint32_t k = starts[c]; k < starts[c + 1]; k++) {
                *out++ = put_token(&e->bits, &t->gaps, GAP_DIRECT, row, order[k] - next, 0);
                next = order[k] + 1;
            }
            continue;
        }
        memset(bitmap, 0, (e->sizes[c] / 64 + 1) * sizeof *bitmap);
        for (uint32_t k = starts[c]; k < starts[c + 1]; k++) bitmap[order[k] / 64] |= 1ull << (order[k] % 64);
        out += t->mode[c] == MODE_NIBBLES ? put_nibbles(bitmap, e->sizes[c], out)
                                          : put_bitmap_gaps(e, bitmap, e->sizes[c], UINT64_MAX, row, out);
    }
    e->section[t->classes] = (uint32_t)(out - e->tokens);
    free(bitmap);
    return FINE;
}

/* The head of the bits, with `positions` tokens to come; and room for `room`, should the patch be of another tile. */
static enum reason open_tokens(encoder *e, uint64_t positions, uint64_t room, int setting) {
    e->tokens = malloc(room + e->count);
    e->bits.start = e->bits.at = malloc(5 * (room + e->count) + 4 * CLASSES_MAX + 16);
    if (!e->tokens || !e->bits.start) return NO_MEMORY;
    e->lanes = positions + e->count >= MANY ? LANES : 1;
    put_bits(&e->bits, e->lanes == LANES, 1);
    put_bits(&e->bits, (uint64_t)setting, 4);
    return FINE;
}

static enum reason encode_classes(encoder *e, int shift, uint32_t *order) {
    const tables *t = e->t;
    uint32_t starts[CLASSES_MAX + 1] = {0}, at[CLASSES_MAX + 1], events[CLASSES_MAX];
    uint64_t tokens = 0, most = 0;
    int top = 0;
    view v = view_of(t, e->before, e->size, shift);
    e->p->classes_of(&v, e->old, e->count, e->classes_k);
    for (uint32_t k = 0; k < e->count; k++) starts[e->classes_k[k] + 1]++;
    for (int c = 0; c < t->classes; c++) starts[c + 1] += starts[c];
    memcpy(at, starts, sizeof at);
    slices *classes = malloc(groups_of(e->size) * sizeof *classes);
    if (!classes) return NO_MEMORY;
    e->p->slice_classes(&v, classes);
    for (int c = 0; c < t->classes; c++) /* larger elements than these need no count */
        if (starts[c + 1] > starts[c] || t->mode[c] != MODE_GAPS) top = c;
    e->p->rank_changes(classes, e->size, top, e->index, e->classes_k, e->count, e->ranks, e->sizes);
    free(classes);
    for (uint32_t k = 0; k < e->count; k++) order[at[e->classes_k[k]]++] = e->ranks[k];
    for (int c = 0; c < t->classes; c++) {
        uint32_t changed = starts[c + 1] - starts[c];
        if (changed > e->sizes[c]) return NOT_THIS_TILE;
        events[c] = t->mode[c] == MODE_HOLES ? e->sizes[c] - changed : changed;
        tokens += t->mode[c] == MODE_NIBBLES ? (e->sizes[c] + 3) / 4 : events[c];
        most += t->mode[c] == MODE_HOLES ? changed : 0;
    }
    enum reason why = open_tokens(e, tokens, tokens + most, shift + 8);
    if (why) return why;
    for (int c = 0; c < t->classes; c++)
        if (t->mode[c] != MODE_NIBBLES) put_count(&e->bits, events[c]);
    why = put_classes(e, order, starts);
    return why ? why : e->section[t->classes] == tokens ? FINE : NOT_THIS_TILE;
}

static enum reason encode_flat(encoder *e, int scale) {
    const tables *t = e->t;
    uint32_t next = 0;
    enum reason why = open_tokens(e, e->count, e->count, scale);
    if (why) return why;
    put_count(&e->bits, e->count);
    memset(e->classes_k, t->classes, e->count);
    for (uint32_t k = 0; k < e->count; k++) {
        const coded *row = t->write_position[t->classes];
        e->tokens[k] = put_token(&e->bits, &t->gaps, GAP_DIRECT, row, e->index[k] - next, scale);
        next = e->index[k] + 1;
    }
    e->section[t->classes] = e->count; /* the classes before it stay empty: all their sections start at 0 */
    return FINE;
}

static inline void put_values_of(encoder *e, int width, uint8_t *out) {
    for (uint32_t k = 0; k < e->count; k++) {
        uint32_t move = load_bits(e->new, width, k) - load_bits(e->old, width, k);
        uint32_t number = zigzag(move & width_mask(width), width) - 1;
        out[k] = put_token(&e->bits, &e->t->values, VALUE_DIRECT, e->t->write_value[e->classes_k[k]], number, 0);
    }
}

static void put_values(encoder *e) {
    uint8_t *out = e->tokens + e->section[e->t->classes];
    switch (e->t->width) {
    case 1: put_values_of(e, 1, out); break;
    case 2: put_values_of(e, 2, out); break;
    default: put_values_of(e, 4, out);
    }
    e->section[e->t->classes + 1] = e->section[e->t->classes] + e->count;
}

/* Kind, states and words from the front, the bits from the back. *payload is the caller's to free. */
static enum reason assemble(encoder *e, int kind, uint8_t **payload, size_t *length) {
    const tables *t = e->t;
    size_t bits = bit_bytes(&e->bits), states = 4 * (size_t)e->lanes, words;
    size_t room = 1 + states + 2 * (size_t)e->section[t->classes + 1] + 2;
    uint8_t *buffer = malloc(room + bits), *end = buffer + room;
    word_writer w = {{LOW, LOW, LOW, LOW}, e->lanes, end};
    if (!buffer) return NO_MEMORY;
    put_symbols(&w, t->write_value[0], VALUE_TOKENS_MAX, e->classes_k, e->tokens + e->section[t->classes], e->count);
    if (kind == KIND_FLAT) {
        put_symbols(&w, t->write_position[t->classes], 0, NULL, e->tokens, e->count);
    } else {
        for (int c = t->classes - 1; c >= 0; c--)
            put_symbols(&w, t->write_position[c], 0, NULL, e->tokens + e->section[c], e->section[c + 1] - e->section[c]);
    }
    words = (size_t)(end - w.at);
    buffer[0] = (uint8_t)kind;
    memmove(buffer + 1 + states, w.at, words);
    memcpy(buffer + 1, w.state, states);
    *length = 1 + states + words + bits;
    for (size_t i = 0; i < bits; i++) buffer[*length - 1 - i] = e->bits.start[i];
    *payload = buffer;
    return FINE;
}

static enum reason encode_body(const tables *t, const path *p, const uint8_t *before, uint32_t size, const uint32_t *index,
                               const uint8_t *old, const uint8_t *new, uint32_t count, int kind, uint8_t **payload,
                               size_t *length) {
    encoder e = {.t = t, .p = p, .before = before, .old = old, .new = new, .index = index, .size = size, .count = count};
    uint32_t *order = malloc(2 * sizeof *order * count);
    enum reason why = NO_MEMORY;
    e.classes_k = malloc(count);
    e.ranks = order + count;
    if (order && e.classes_k)
        why = kind == KIND_CLASSES ? encode_classes(&e, best_shift(t, before, size, count), order)
                                   : encode_flat(&e, best_scale(t, size, count));
    if (!why) {
        put_values(&e);
        why = assemble(&e, kind, payload, length);
    }
    free(order);
    free(e.classes_k);
    free(e.tokens);
    free(e.bits.start);
    return why;
}

#endif
