/* Passes over whole tiles, in blocks of 64 elements. _paths.h includes this once per instruction set with
 *   NAME(f)   the name of f in this path          TARGET   the attribute that allows its instructions
 *   block     64 class numbers                    load_block, equal_mask, differ_mask
 * The portable passes, element by element, are in _paths.h. */

/* The last block of a tile, if it is short: its elements at the start of `room`. */
TARGET static inline block NAME(tail_block)(const view *v, uint32_t b, uint64_t *valid) {
    uint8_t room[BLOCK * 4] = {0};
    uint32_t left = v->size - b * BLOCK;
    memcpy(room, v->bits + (size_t)b * BLOCK * v->width, (size_t)left * v->width);
    *valid = (1ull << left) - 1;
    return NAME(load_block)(v, room);
}

TARGET static inline block NAME(any_block)(const view *v, uint32_t b, uint64_t *valid) {
    *valid = UINT64_MAX;
    if (v->size - b * BLOCK >= BLOCK) return NAME(load_block)(v, v->bits + (size_t)b * BLOCK * v->width);
    return NAME(tail_block)(v, b, valid);
}

/* How many elements each class has. */
TARGET static void NAME(count_classes)(const view *v, uint32_t *sizes) {
    uint32_t blocks = (v->size + BLOCK - 1) / BLOCK, left = v->size;
    memset(sizes, 0, CLASSES_MAX * sizeof *sizes);
    for (uint32_t b = 0; b < blocks; b++) {
        uint64_t valid;
        block classes = NAME(any_block)(v, b, &valid);
        for (int c = 0; c < v->top; c++) sizes[c] += (uint32_t)_mm_popcnt_u64(NAME(equal_mask)(classes, c) & valid);
    }
    for (int c = 0; c < v->top; c++) left -= sizes[c];
    sizes[v->top] = left;
}

/* For each changed element, which one of its class it is. `wanted`: bit c = class c is looked at; sizes[] of the others
 * and ranks in them are not set. */
TARGET static void NAME(rank_changes)(const view *v, const uint32_t *index, const uint8_t *classes_k, uint32_t count,
                                      uint32_t wanted, uint32_t *ranks, uint32_t *sizes) {
    uint32_t blocks = (v->size + BLOCK - 1) / BLOCK, k = 0;
    int chosen[CLASSES_MAX], n = 0;
    memset(sizes, 0, CLASSES_MAX * sizeof *sizes);
    for (int c = 0; c <= v->top; c++)
        if (wanted >> c & 1) chosen[n++] = c;
    for (uint32_t b = 0; b < blocks; b++) {
        uint64_t valid, masks[CLASSES_MAX];
        uint32_t seen[CLASSES_MAX], end = (b + 1) * BLOCK;
        block classes = NAME(any_block)(v, b, &valid);
        for (int j = 0; j < n; j++) {
            int c = chosen[j];
            masks[c] = NAME(equal_mask)(classes, c) & valid;
            seen[c] = sizes[c];
            sizes[c] += (uint32_t)_mm_popcnt_u64(masks[c]);
        }
        for (; k < count && index[k] < end; k++) {
            int c = classes_k[k];
            ranks[k] = seen[c] + (uint32_t)_mm_popcnt_u64(_bzhi_u64(masks[c], index[k] & (BLOCK - 1)));
        }
    }
}

/* From the bitmap of each class, the bitmap of the tile. Bitmaps may be read 16 bytes beyond their end. */
TARGET static void NAME(spread_bitmaps)(const view *v, uint8_t *const *bitmaps, uint32_t wanted, uint64_t *changed) {
    uint32_t blocks = (v->size + BLOCK - 1) / BLOCK, offset[CLASSES_MAX] = {0};
    int chosen[CLASSES_MAX], n = 0;
    for (int c = 0; c <= v->top; c++)
        if (wanted >> c & 1) chosen[n++] = c;
    for (uint32_t b = 0; b < blocks; b++) {
        uint64_t valid, word = 0;
        block classes = NAME(any_block)(v, b, &valid);
        for (int j = 0; j < n; j++) {
            uint64_t mask = NAME(equal_mask)(classes, chosen[j]) & valid, bits;
            uint32_t at = offset[j], ones = (uint32_t)_mm_popcnt_u64(mask);
            const uint8_t *from = bitmaps[chosen[j]] + (at >> 3);
            memcpy(&bits, from, 8);
            bits >>= at & 7;
            if (ones > 57) bits |= (uint64_t)from[8] << 1 << (63 - (at & 7)); /* rare: 57 bits are at hand */
            word |= _pdep_u64(bits, mask);
            offset[j] = at + ones;
        }
        changed[b] = word;
    }
}

/* changed[b], bit i: element 64 b + i differs; for `blocks` whole blocks. */
TARGET static void NAME(differ)(const uint8_t *before, const uint8_t *after, int width, uint32_t blocks, uint64_t *changed) {
    size_t step = (size_t)BLOCK * width;
    switch (width) {
    case 1: for (uint32_t b = 0; b < blocks; b++) changed[b] = NAME(differ_mask)(before + b * step, after + b * step, 1); break;
    case 2: for (uint32_t b = 0; b < blocks; b++) changed[b] = NAME(differ_mask)(before + b * step, after + b * step, 2); break;
    default: for (uint32_t b = 0; b < blocks; b++) changed[b] = NAME(differ_mask)(before + b * step, after + b * step, 4);
    }
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
