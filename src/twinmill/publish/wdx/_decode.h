/* Tiles of kind 3 and 4 from bytes. The bytes are trusted in nothing: every count is bounded by the tile before it is used,
 * and nothing outside of the payload is ever read. */
#ifndef WDX_DECODE_H
#define WDX_DECODE_H

#include "_paths.h"
#include "_rans.h"

/* ---- decode, first half: where. Second half: what. Between them the caller makes room for the patch. */

typedef struct {
    const tables *t;
    const path *p;
    const uint8_t *before;
    uint32_t size, count, blocks;
    int kind, setting;
    word_reader words;
    bit_reader bits;
    uint8_t *tokens;   /* of one section at a time */
    uint64_t *changed; /* bitmap of the tile */
} decoder;

static enum reason get_count(decoder *d, uint32_t most, uint32_t *count) {
    uint32_t length = (uint32_t)get_bits(&d->bits, 5);
    uint64_t number = length ? get_bits(&d->bits, length - 1) | 1ull << (length - 1) : 0;
    *count = (uint32_t)number;
    return bits_cut(&d->bits) ? BITS_CUT : number > most ? COUNT_LARGE : FINE;
}

/* `count` gaps; each position flips one bit of a bitmap of `size` bits. */
static enum reason get_positions(decoder *d, int row, uint32_t count, uint32_t size, int scale, uint64_t *bitmap) {
    const alphabet *a = &d->t->gaps;
    uint64_t next = 0;
    enum reason why = get_symbols(&d->words, d->t->read_position[row], NULL, d->tokens, count);
    if (why) return why;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t token = d->tokens[k];
        uint64_t at = next + ((uint64_t)a->base[token] << scale) + get_bits(&d->bits, a->extra[token] + (uint32_t)scale);
        if (at >= size) return bits_cut(&d->bits) ? BITS_CUT : POSITION_LARGE;
        bitmap[at / 64] ^= 1ull << (at % 64);
        next = at + 1;
    }
    return bits_cut(&d->bits) ? BITS_CUT : FINE;
}

static enum reason get_nibbles(decoder *d, int row, uint32_t size, uint64_t *bitmap) {
    uint32_t count = (size + 3) / 4;
    enum reason why = get_symbols(&d->words, d->t->read_position[row], NULL, d->tokens, count);
    if (why) return why;
    for (uint32_t i = 0; i < count; i++) bitmap[i / 16] |= (uint64_t)d->tokens[i] << (i % 16 * 4);
    return size % 4 && d->tokens[count - 1] >> (size % 4) ? NIBBLE_END : FINE;
}

/* The bitmaps of all classes one behind the other, each from a whole word on. */
static enum reason get_bitmaps(decoder *d, const uint32_t *sizes, const uint32_t *counts, const uint32_t *starts, uint64_t *bitmaps) {
    enum reason why = FINE;
    for (int c = 0; c < d->t->classes && !why; c++) {
        uint64_t *bitmap = bitmaps + starts[c] / 64;
        if (d->t->mode[c] == MODE_HOLES) memset(bitmap, 0xFF, (sizes[c] + 63) / 64 * sizeof *bitmap);
        why = d->t->mode[c] == MODE_NIBBLES ? get_nibbles(d, c, sizes[c], bitmap)
                                            : get_positions(d, c, counts[c], sizes[c], 0, bitmap);
    }
    return why;
}

static enum reason get_classes(decoder *d) {
    const tables *t = d->t;
    uint32_t sizes[CLASSES_MAX], counts[CLASSES_MAX], starts[CLASSES_MAX] = {0}, bits = 0, most = 0;
    view v = view_of(t, d->before, d->size, d->setting - 8);
    slices *classes = malloc(groups_of(d->size) * sizeof *classes);
    uint64_t *bitmaps = NULL;
    enum reason why = FINE;
    if (!classes) return NO_MEMORY;
    d->p->slice_classes(&v, classes);
    d->p->count_classes(classes, d->size, v.top, sizes);
    for (int c = 0; c < t->classes && !why; c++) {
        counts[c] = (sizes[c] + 3) / 4;
        if (t->mode[c] != MODE_NIBBLES) why = get_count(d, sizes[c], counts + c);
        if (counts[c] > most) most = counts[c];
        starts[c] = bits;
        bits += (sizes[c] + 63) / 64 * 64;
    }
    if (!why && (!(bitmaps = calloc(bits / 64 + 2, sizeof *bitmaps)) || !(d->tokens = malloc(most + 1)))) why = NO_MEMORY;
    if (!why) why = get_bitmaps(d, sizes, counts, starts, bitmaps);
    while (v.top > 0 && !sizes[v.top]) v.top--;
    if (!why) d->count = d->p->spread_bitmaps(classes, d->size, v.top, (const uint8_t *)bitmaps, starts, d->changed);
    free(classes);
    free(bitmaps);
    return why;
}

static enum reason get_flat(decoder *d) {
    uint32_t count;
    enum reason why = get_count(d, d->size, &count);
    if (why) return why;
    d->tokens = malloc(count + 1);
    if (!d->tokens) return NO_MEMORY;
    memset(d->changed, 0, d->blocks * sizeof *d->changed);
    d->count = count; /* gaps never meet the same position twice */
    return get_positions(d, d->t->classes, count, d->size, d->setting, d->changed);
}

/* Sets d->count. Whatever it returns, decode_close must follow. */
static enum reason decode_open(decoder *d, const uint8_t *payload, size_t length) {
    enum reason why;
    d->kind = payload[0];
    d->blocks = blocks_of(d->size);
    if (d->kind != KIND_CLASSES && d->kind != KIND_FLAT) return KIND_UNKNOWN;
    if ((why = bits_open(&d->bits, payload, length))) return why;
    int lanes = get_bits(&d->bits, 1) ? LANES : 1;
    d->setting = (int)get_bits(&d->bits, 4);
    if (bits_cut(&d->bits)) return BITS_CUT;
    if ((why = reader_open(&d->words, payload, length, lanes))) return why;
    d->changed = malloc(d->blocks * sizeof *d->changed);
    if (!d->changed) return NO_MEMORY;
    if ((why = d->kind == KIND_CLASSES ? get_classes(d) : get_flat(d))) return why;
    return d->count ? FINE : NOTHING;
}

static inline enum reason get_values_of(decoder *d, const uint8_t *tokens, const uint8_t *old, uint8_t *new, int width) {
    const alphabet *a = &d->t->values;
    uint64_t largest = width_mask(width);
    int idle = 0;
    for (uint32_t k = 0; k < d->count; k++) {
        uint32_t extra = a->extra[tokens[k]];
        uint64_t move = 1 + (uint64_t)a->base[tokens[k]];
        if (extra) move += get_bits(&d->bits, extra);
        idle |= move > largest;
        store_bits(new, width, k, load_bits(old, width, k) + unzigzag((uint32_t)move));
    }
    return idle ? NO_MOVE : FINE;
}

static enum reason get_values(decoder *d, const uint8_t *tokens, const uint8_t *old, uint8_t *new) {
    switch (d->t->width) {
    case 1: return get_values_of(d, tokens, old, new, 1);
    case 2: return get_values_of(d, tokens, old, new, 2);
    default: return get_values_of(d, tokens, old, new, 4);
    }
}

/* index: room for count + 4. old, new: as wide as the tile's elements. */
static enum reason decode_patch(decoder *d, const uint8_t *payload, size_t length, uint32_t *index, uint8_t *old, uint8_t *new) {
    const tables *t = d->t;
    uint32_t count = d->count;
    uint8_t *rows = malloc(2 * (size_t)count), *tokens = rows + count;
    view v = view_of(t, d->before, d->size, d->setting - 8);
    enum reason why;
    size_t bytes;
    if (!rows) return NO_MEMORY;
    d->p->list_ones(d->changed, d->blocks, 0, index);
    take_bits(d->before, t->width, index, count, old);
    if (d->kind == KIND_CLASSES) d->p->classes_of(&v, old, count, rows);
    else memset(rows, t->classes, count);
    why = get_symbols(&d->words, t->read_value[0], rows, tokens, count);
    if (!why) why = get_values(d, tokens, old, new);
    free(rows);
    if (!why) why = reader_close(&d->words);
    if (!why) why = bits_close(&d->bits, &bytes);
    if (!why && (size_t)(d->words.at - payload) + bytes != length) why = ENDS_DIFFER;
    return why;
}

static void decode_close(decoder *d) {
    free(d->tokens);
    free(d->changed);
    free(d->bits.bytes);
}

#endif
