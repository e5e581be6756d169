/* The entropy coder: rans.py is its specification. */
#ifndef WDX_RANS_H
#define WDX_RANS_H

#include "_format.h"

#define LOW (1u << 16)
#define LANES 4
#define MANY 2048

/* ---- writing: from the last symbol to the first, towards lower addresses */

typedef struct {
    uint32_t state[LANES];
    int lanes;
    uint8_t *at; /* words grow downwards from here */
} word_writer;

static inline uint64_t quotient(uint64_t reciprocal, uint32_t x, uint32_t complement) {
#ifdef __SIZEOF_INT128__
    (void)complement;
    return (uint64_t)((unsigned __int128)reciprocal * x >> 64);
#else
    return reciprocal == UINT64_MAX ? x - 1 : x / (WHOLE - complement);
#endif
}

static inline uint32_t put_symbol(uint32_t x, const coded *c, uint8_t **at) {
    uint16_t word = (uint16_t)x;
    int full = x >= c->limit;
    memcpy(*at - 2, &word, 2);
    *at -= 2 * full;
    x = full ? x >> 16 : x;
    return x + c->bias + (uint32_t)quotient(c->reciprocal, x, c->complement) * c->complement;
}

/* `rows` of `stride` symbols each; symbol i uses row which[i], or row 0 when `which` is NULL. */
static void put_symbols(word_writer *w, const coded *rows, uint32_t stride, const uint8_t *which, const uint8_t *symbols,
                        uint32_t count) {
#define CODE(i) (rows + (which ? which[i] * stride : 0) + symbols[i])
    uint32_t i = count;
    uint8_t *at = w->at;
    if (w->lanes == LANES) {
        uint32_t a = w->state[0], b = w->state[1], c = w->state[2], d = w->state[3];
        switch (i % LANES) {
        case 3: c = put_symbol(c, CODE(i - 1), &at); i--; /* fall through */
        case 2: b = put_symbol(b, CODE(i - 1), &at); i--; /* fall through */
        case 1: a = put_symbol(a, CODE(i - 1), &at); i--;
        }
        for (; i; i -= LANES) {
            d = put_symbol(d, CODE(i - 1), &at);
            c = put_symbol(c, CODE(i - 2), &at);
            b = put_symbol(b, CODE(i - 3), &at);
            a = put_symbol(a, CODE(i - 4), &at);
        }
        w->state[0] = a, w->state[1] = b, w->state[2] = c, w->state[3] = d;
    } else {
        uint32_t a = w->state[0];
        for (; i; i--) a = put_symbol(a, CODE(i - 1), &at);
        w->state[0] = a;
    }
    w->at = at;
#undef CODE
}

/* ---- reading */

typedef struct {
    uint32_t state[LANES];
    int lanes;
    const uint8_t *at, *end;
} word_reader;

static enum reason reader_open(word_reader *r, const uint8_t *payload, size_t length, int lanes) {
    r->lanes = lanes;
    r->end = payload + length;
    if (length < 1 + 4 * (size_t)lanes) return STATES_CUT;
    memcpy(r->state, payload + 1, 4 * (size_t)lanes);
    r->at = payload + 1 + 4 * lanes;
    return FINE;
}

/* One symbol; the caller knows that a word is left. */
static inline uint32_t get_symbol(uint32_t x, const uint32_t *row, uint8_t *out, const uint8_t **at) {
    uint32_t slot = row[x & (WHOLE - 1)];
    uint16_t word;
    memcpy(&word, *at, 2);
    *out = (uint8_t)slot;
    x = (slot >> 20) * (x >> PROB_BITS) + (slot >> 8 & 0xFFF);
    int low = x < LOW;
    *at += 2 * low;
    return low ? x << 16 | word : x;
}

static inline enum reason get_last_symbol(word_reader *r, int lane, const uint32_t *row, uint8_t *out) {
    uint32_t x = r->state[lane], slot = row[x & (WHOLE - 1)];
    *out = (uint8_t)slot;
    x = (slot >> 20) * (x >> PROB_BITS) + (slot >> 8 & 0xFFF);
    if (x < LOW) {
        uint16_t word;
        if (r->end - r->at < 2) return WORDS_CUT;
        memcpy(&word, r->at, 2);
        r->at += 2;
        x = x << 16 | word;
    }
    r->state[lane] = x;
    return FINE;
}

/* `rows` of WHOLE slots each; symbol i uses row which[i], or row 0 when `which` is NULL. */
static enum reason get_symbols(word_reader *r, const uint32_t *rows, const uint8_t *which, uint8_t *out, uint32_t count) {
#define ROW(i) (rows + (which ? (size_t)which[i] * WHOLE : 0))
    uint32_t i = 0;
    if (r->lanes == LANES) {
        uint32_t a = r->state[0], b = r->state[1], c = r->state[2], d = r->state[3];
        const uint8_t *at = r->at;
        for (; i + LANES <= count && r->end - at >= 2 * LANES; i += LANES) {
            a = get_symbol(a, ROW(i), out + i, &at);
            b = get_symbol(b, ROW(i + 1), out + i + 1, &at);
            c = get_symbol(c, ROW(i + 2), out + i + 2, &at);
            d = get_symbol(d, ROW(i + 3), out + i + 3, &at);
        }
        r->state[0] = a, r->state[1] = b, r->state[2] = c, r->state[3] = d;
        r->at = at;
    }
    for (; i < count; i++) {
        enum reason why = get_last_symbol(r, (int)(i % (uint32_t)r->lanes), ROW(i), out + i);
        if (why) return why;
    }
    return FINE;
#undef ROW
}

static enum reason reader_close(const word_reader *r) {
    for (int lane = 0; lane < r->lanes; lane++)
        if (r->state[lane] != LOW) return STATES_END;
    return FINE;
}

/* ---- bits: written forwards, turned round at the end, so that a payload is read from both ends */

typedef struct {
    uint8_t *start, *at; /* with 8 bytes of room behind what will be written */
    uint64_t held;
    uint32_t fill; /* bits in held, below 8 between calls */
} bit_writer;

static inline void put_bits(bit_writer *w, uint64_t value, uint32_t count) { /* at most 56 */
    w->held |= value << w->fill;
    w->fill += count;
    memcpy(w->at, &w->held, 8);
    w->at += w->fill >> 3;
    w->held = w->fill >= 64 ? 0 : w->held >> (w->fill & ~7u);
    w->fill &= 7;
}

static size_t bit_bytes(const bit_writer *w) { return (size_t)(w->at - w->start) + (w->fill > 0); }

typedef struct {
    uint8_t *bytes; /* the payload turned round, with 16 zeros behind it */
    uint64_t at, end;
} bit_reader;

static enum reason bits_open(bit_reader *r, const uint8_t *payload, size_t length) {
    r->bytes = malloc(length + 16);
    if (!r->bytes) return NO_MEMORY;
    for (size_t i = 0; i < length; i++) r->bytes[i] = payload[length - 1 - i];
    memset(r->bytes + length, 0, 16);
    r->at = 0;
    r->end = 8 * (uint64_t)(length - 1);
    return FINE;
}

/* At most 56 bits. Beyond the end: sets at above end for good, and the bits mean nothing. */
static inline uint64_t get_bits(bit_reader *r, uint32_t count) {
    uint64_t word, from = r->at < r->end ? r->at : r->end;
    memcpy(&word, r->bytes + (from >> 3), 8);
    r->at += count;
    return word >> (from & 7) & ((1ull << count) - 1);
}

static inline int bits_cut(const bit_reader *r) { return r->at > r->end; }

static enum reason bits_close(bit_reader *r, size_t *bytes) {
    if (bits_cut(r)) return BITS_CUT;
    *bytes = (size_t)((r->at + 7) / 8);
    return get_bits(r, (uint32_t)(-r->at & 7)) ? BITS_END : FINE;
}

#endif
