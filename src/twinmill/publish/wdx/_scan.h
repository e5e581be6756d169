/* Passes over whole tiles, in blocks of 64 elements. _paths.h includes this once per instruction set with
 *   NAME(f)   the name of f in this path          TARGET   the attribute that allows its instructions
 *   NAME(slice_block), NAME(differ_mask)
 * The portable passes are in _portable.h.
 *
 * A class has four bits, so the classes of a block are four words, one per bit ("slices"): the elements of one class are
 * then a few ANDs away, in place of comparing and gathering 64 bytes per class. */

/* The slices of every block; elements behind the end of the tile are of any class. */
TARGET static void NAME(slice_classes)(const view *v, slices *out) {
    uint32_t whole = v->size / BLOCK;
    size_t step = (size_t)BLOCK * v->width;
#define ALL(width) \
    for (uint32_t b = 0; b < whole; b++) NAME(slice_block)(v, v->bits + b * step, width, out + b / 4, b % 4);
    switch (v->width) {
    case 1: ALL(1) break;
    case 2: ALL(2) break;
    default: ALL(4)
    }
#undef ALL
    if (v->size % BLOCK) {
        uint8_t room[BLOCK * 4] = {0};
        memcpy(room, v->bits + whole * step, v->size % BLOCK * (size_t)v->width);
        NAME(slice_block)(v, room, v->width, out + whole / 4, whole % 4);
    }
}

/* low[i] & high[j]: the elements of class i + 4 j of block b */
#define PAIRS(classes, b, valid) \
    uint64_t b0 = classes[(b) / 4].bit[0][(b) % 4], b1 = classes[(b) / 4].bit[1][(b) % 4]; \
    uint64_t b2 = classes[(b) / 4].bit[2][(b) % 4], b3 = classes[(b) / 4].bit[3][(b) % 4]; \
    uint64_t low[4] = {~(b0 | b1), b0 & ~b1, b1 & ~b0, b0 & b1}; \
    uint64_t high[4] = {~(b2 | b3) & (valid), b2 & ~b3 & (valid), b3 & ~b2 & (valid), b2 & b3 & (valid)}

/* The loops over classes are unrolled, for 8, 10, 12 or 16 of them; classes that do not exist have no elements. */
#define UNROLLED(call) (top < 8 ? call(8) : top < 10 ? call(10) : top < 12 ? call(12) : call(16))
#define INLINE TARGET static inline __attribute__((always_inline))

INLINE void NAME(count_block)(const slices *classes, uint32_t b, uint64_t valid, const int n, uint32_t *count) {
    PAIRS(classes, b, valid);
#pragma GCC unroll 16
    for (int c = 0; c < n; c++) count[c] += (uint32_t)_mm_popcnt_u64(low[c & 3] & high[c >> 2]);
}

/* Ones per class in four whole blocks at a time: bytes are counted by table and summed before they overflow. */
INLINE void NAME(count_groups)(const slices *classes, uint32_t groups, const int n, uint32_t *count) {
    const __m256i ones = _mm256_set1_epi8(-1), nibble = _mm256_set1_epi8(15);
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    for (uint32_t g = 0; g < groups;) {
        uint32_t end = groups - g < 31 ? groups : g + 31; /* 31 * 8 < 256 */
        __m256i bytes[CLASSES_MAX];
        for (int c = 0; c < n; c++) bytes[c] = _mm256_setzero_si256();
        for (; g < end; g++) {
            __m256i b[4];
            for (int j = 0; j < 4; j++) b[j] = _mm256_loadu_si256((const __m256i *)classes[g].bit[j]);
            __m256i low[4] = {_mm256_andnot_si256(_mm256_or_si256(b[0], b[1]), ones), _mm256_andnot_si256(b[1], b[0]),
                              _mm256_andnot_si256(b[0], b[1]), _mm256_and_si256(b[0], b[1])};
            __m256i high[4] = {_mm256_andnot_si256(_mm256_or_si256(b[2], b[3]), ones), _mm256_andnot_si256(b[3], b[2]),
                               _mm256_andnot_si256(b[2], b[3]), _mm256_and_si256(b[2], b[3])};
#pragma GCC unroll 16
            for (int c = 0; c < n; c++) {
                __m256i mask = _mm256_and_si256(low[c & 3], high[c >> 2]);
                __m256i few = _mm256_shuffle_epi8(table, _mm256_and_si256(mask, nibble));
                __m256i more = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(mask, 4), nibble));
                bytes[c] = _mm256_add_epi8(bytes[c], _mm256_add_epi8(few, more));
            }
        }
        for (int c = 0; c < n; c++) {
            uint64_t sums[4];
            _mm256_storeu_si256((__m256i *)sums, _mm256_sad_epu8(bytes[c], _mm256_setzero_si256()));
            count[c] += (uint32_t)(sums[0] + sums[1] + sums[2] + sums[3]);
        }
    }
}

/* How many elements each class has. */
TARGET static void NAME(count_classes)(const slices *classes, uint32_t size, int top, uint32_t *sizes) {
    uint32_t groups = size / (4 * BLOCK), count[CLASSES_MAX] = {0};
#define CALL(n) NAME(count_groups)(classes, groups, n, count)
    UNROLLED(CALL);
#undef CALL
    for (uint32_t b = 4 * groups; b < blocks_of(size); b++) NAME(count_block)(classes, b, valid_of(size, b), CLASSES_MAX, count);
    memcpy(sizes, count, sizeof count);
}

INLINE void NAME(rank_blocks)(const slices *classes, uint32_t size, const uint32_t *index, const uint8_t *classes_k,
                              uint32_t count, uint32_t *ranks, const int n, uint32_t *seen) {
    uint32_t k = 0;
    for (uint32_t b = 0; b < blocks_of(size); b++) {
        for (uint32_t end = (b + 1) * BLOCK; k < count && index[k] < end; k++) {
            uint64_t mask = class_mask(classes, b, classes_k[k]);
            ranks[k] = seen[classes_k[k]] + (uint32_t)_mm_popcnt_u64(_bzhi_u64(mask, index[k] & (BLOCK - 1)));
        }
        NAME(count_block)(classes, b, b < size / BLOCK ? UINT64_MAX : valid_of(size, b), n, seen);
    }
}

/* For each changed element, which one of its class it is; and how many each class has. */
TARGET static void NAME(rank_changes)(const slices *classes, uint32_t size, int top, const uint32_t *index,
                                      const uint8_t *classes_k, uint32_t count, uint32_t *ranks, uint32_t *sizes) {
    uint32_t seen[CLASSES_MAX] = {0};
#define CALL(n) NAME(rank_blocks)(classes, size, index, classes_k, count, ranks, n, seen)
    UNROLLED(CALL);
#undef CALL
    memcpy(sizes, seen, sizeof seen);
}

INLINE uint64_t NAME(spread_block)(const slices *classes, uint32_t b, uint64_t valid, const int n, const uint8_t *bitmaps,
                                   uint64_t *offset) {
    uint64_t word = 0;
    PAIRS(classes, b, valid);
#pragma GCC unroll 16
    for (int c = 0; c < n; c++) {
        uint64_t mask = low[c & 3] & high[c >> 2], bits, at = offset[c], ones = (uint64_t)_mm_popcnt_u64(mask);
        memcpy(&bits, bitmaps + (at >> 3), 8);
        bits >>= at & 7;
        if (__builtin_expect(ones > 57, 0)) bits |= (uint64_t)bitmaps[(at >> 3) + 8] << 1 << (63 - (at & 7)); /* 57 are at hand */
        word |= _pdep_u64(bits, mask);
        offset[c] = at + ones;
    }
    return word;
}

INLINE uint32_t NAME(spread_blocks)(const slices *classes, uint32_t size, const int n, const uint8_t *bitmaps,
                                    uint64_t *offset, uint64_t *changed) {
    uint32_t whole = size / BLOCK, ones = 0;
    for (uint32_t b = 0; b < whole; b++) {
        changed[b] = NAME(spread_block)(classes, b, UINT64_MAX, n, bitmaps, offset);
        ones += (uint32_t)_mm_popcnt_u64(changed[b]);
    }
    if (size % BLOCK) {
        changed[whole] = NAME(spread_block)(classes, whole, valid_of(size, whole), n, bitmaps, offset);
        ones += (uint32_t)_mm_popcnt_u64(changed[whole]);
    }
    return ones;
}

/* From the bitmaps of all classes, the bitmap of the tile; returns how many ones it has. The bitmap of class c begins at bit
 * starts[c]; 16 bytes behind the last bitmap may be read. */
TARGET static uint32_t NAME(spread_bitmaps)(const slices *classes, uint32_t size, int top, const uint8_t *bitmaps,
                                            const uint32_t *starts, uint64_t *changed) {
    uint64_t offset[CLASSES_MAX];
    for (int c = 0; c < CLASSES_MAX; c++) offset[c] = starts[c];
#define CALL(n) NAME(spread_blocks)(classes, size, n, bitmaps, offset, changed)
    return UNROLLED(CALL);
#undef CALL
}

/* The classes of single elements. */
TARGET static void NAME(classes_of)(const view *v, const uint8_t *bits, uint32_t count, uint8_t *out) {
    classes_of_bits(v, bits, count, out);
}

/* changed[b], bit i: element 64 b + i differs; for `blocks` whole blocks. Returns how many do. */
TARGET static uint32_t NAME(differ)(const uint8_t *before, const uint8_t *after, int width, uint32_t blocks, uint64_t *changed) {
    size_t step = (size_t)BLOCK * width;
    uint32_t ones = 0;
#define ALL(width) \
    for (uint32_t b = 0; b < blocks; b++) { \
        changed[b] = NAME(differ_mask)(before + b * step, after + b * step, width); \
        ones += (uint32_t)_mm_popcnt_u64(changed[b]); \
    }
    switch (width) {
    case 1: ALL(1) break;
    case 2: ALL(2) break;
    default: ALL(4)
    }
#undef ALL
    return ones;
}

/* The positions of all ones. Writes up to 4 entries behind the last one. */
TARGET static uint32_t NAME(list_ones)(const uint64_t *words, uint32_t count, uint32_t first, uint32_t *index) {
    uint32_t k = 0;
    for (uint32_t b = 0; b < count; b++) {
        uint64_t word = words[b];
        uint32_t ones = (uint32_t)_mm_popcnt_u64(word), base = first + b * BLOCK;
        uint32_t *out = index + k;
        for (int i = 0; i < 4; i++) { /* without a branch: most blocks have 0 to 4 */
            out[i] = base + (uint32_t)_tzcnt_u64(word);
            word = _blsr_u64(word);
        }
        for (out += 4; word; word = _blsr_u64(word)) *out++ = base + (uint32_t)_tzcnt_u64(word);
        k += ones;
    }
    return k;
}

#undef PAIRS
#undef UNROLLED
#undef INLINE
