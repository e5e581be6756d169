/* The same passes for every machine, and how to choose. All give the same result. */
#ifndef WDX_PATHS_H
#define WDX_PATHS_H

#include "_format.h"

typedef struct {
    const char *name;
    int (*works)(void);
    void (*slice_classes)(const view *v, slices *out);
    void (*classes_of)(const view *v, const uint8_t *bits, uint32_t count, uint8_t *out);
    void (*count_classes)(const slices *classes, uint32_t size, int top, uint32_t *sizes);
    void (*rank_changes)(const slices *classes, uint32_t size, int top, const uint32_t *index, const uint8_t *classes_k,
                         uint32_t count, uint32_t *ranks, uint32_t *sizes);
    uint32_t (*spread_bitmaps)(const slices *classes, uint32_t size, int top, const uint8_t *bitmaps, const uint32_t *starts,
                           uint64_t *changed);
    uint32_t (*differ)(const uint8_t *before, const uint8_t *after, int width, uint32_t blocks, uint64_t *changed);
    uint32_t (*list_ones)(const uint64_t *words, uint32_t count, uint32_t first, uint32_t *index);
    void (*digest_moves)(const uint32_t *index, const uint32_t *old, const uint32_t *new, uint32_t count, uint64_t halves[2]);
} path;

/* The elements of class c in block b. */
static inline uint64_t class_mask(const slices *classes, uint32_t b, int c) {
#define SLICE(j) (classes[b / 4].bit[j][b % 4] ^ (((uint64_t)c >> (j) & 1) - 1)) /* turned round where bit j of c is 0 */
    return SLICE(0) & SLICE(1) & SLICE(2) & SLICE(3);
#undef SLICE
}

/* ---- portable */

static int portable_works(void) { return 1; }

static void portable_slice_classes(const view *v, slices *out) {
    memset(out, 0, groups_of(v->size) * sizeof *out);
    for (uint32_t i = 0; i < v->size; i++) {
        uint64_t c = (uint64_t)class_of(v, load_bits(v->bits, v->width, i));
        for (int j = 0; j < 4; j++) out[i / BLOCK / 4].bit[j][i / BLOCK % 4] |= (c >> j & 1) << (i % BLOCK);
    }
}

static void portable_classes_of(const view *v, const uint8_t *bits, uint32_t count, uint8_t *out) {
    classes_of_bits(v, bits, count, out);
}

static void portable_count_classes(const slices *classes, uint32_t size, int top, uint32_t *sizes) {
    memset(sizes, 0, CLASSES_MAX * sizeof *sizes);
    for (uint32_t b = 0; b < blocks_of(size); b++)
        for (int c = 0; c <= top; c++)
            sizes[c] += (uint32_t)__builtin_popcountll(class_mask(classes, b, c) & valid_of(size, b));
}

static void portable_rank_changes(const slices *classes, uint32_t size, int top, const uint32_t *index,
                                  const uint8_t *classes_k, uint32_t count, uint32_t *ranks, uint32_t *sizes) {
    uint32_t k = 0;
    memset(sizes, 0, CLASSES_MAX * sizeof *sizes);
    for (uint32_t b = 0; b < blocks_of(size); b++) {
        for (; k < count && index[k] / BLOCK == b; k++) {
            uint64_t before = (1ull << (index[k] % BLOCK)) - 1;
            int c = classes_k[k];
            ranks[k] = sizes[c] + (uint32_t)__builtin_popcountll(class_mask(classes, b, c) & before);
        }
        for (int c = 0; c <= top; c++)
            sizes[c] += (uint32_t)__builtin_popcountll(class_mask(classes, b, c) & valid_of(size, b));
    }
}

static uint32_t portable_spread_bitmaps(const slices *classes, uint32_t size, int top, const uint8_t *bitmaps,
                                    const uint32_t *starts, uint64_t *changed) {
    uint32_t offset[CLASSES_MAX], ones = 0;
    memcpy(offset, starts, sizeof offset);
    for (uint32_t b = 0; b < blocks_of(size); b++) {
        changed[b] = 0;
        for (int c = 0; c <= top; c++) {
            uint64_t mask = class_mask(classes, b, c) & valid_of(size, b);
            for (; mask; mask &= mask - 1) {
                uint32_t at = offset[c]++;
                changed[b] |= (mask & -mask) & -(uint64_t)(bitmaps[at >> 3] >> (at & 7) & 1);
            }
        }
        ones += (uint32_t)__builtin_popcountll(changed[b]);
    }
    return ones;
}

static uint32_t portable_differ(const uint8_t *before, const uint8_t *after, int width, uint32_t blocks, uint64_t *changed) {
    size_t step = (size_t)BLOCK * width;
    uint32_t ones = 0;
    for (uint32_t b = 0; b < blocks; b++, before += step, after += step) {
        changed[b] = 0;
        if (memcmp(before, after, step) == 0) continue;
        for (uint32_t i = 0; i < BLOCK; i++)
            changed[b] |= (uint64_t)(load_bits(before, width, i) != load_bits(after, width, i)) << i;
        ones += (uint32_t)__builtin_popcountll(changed[b]);
    }
    return ones;
}

static uint32_t portable_list_ones(const uint64_t *words, uint32_t count, uint32_t first, uint32_t *index) {
    uint32_t k = 0;
    for (uint32_t b = 0; b < count; b++)
        for (uint64_t word = words[b]; word; word &= word - 1) index[k++] = first + b * BLOCK + (uint32_t)__builtin_ctzll(word);
    return k;
}

/* ---- digest: reference.py says what the keys are for */

static inline uint32_t key_one(uint32_t i) {
    i ^= 0x9E3779B9u;
    i = (i ^ i >> 16) * 0x85EBCA6Bu;
    i = (i ^ i >> 13) * 0xC2B2AE35u;
    return i ^ i >> 16;
}

static inline uint32_t key_two(uint32_t one) {
    one = (one ^ one >> 15) * 0x2C1B3C6Du;
    return one ^ one >> 12;
}

static void portable_digest_moves(const uint32_t *index, const uint32_t *old, const uint32_t *new, uint32_t count,
                                      uint64_t halves[2]) {
    for (uint32_t k = 0; k < count; k++) {
        uint32_t one = key_one(index[k]);
        uint64_t moved = (uint64_t)new[k] - old[k];
        halves[0] += moved * one;
        halves[1] += moved * key_two(one);
    }
}

static const path PORTABLE = {"portable", portable_works, portable_slice_classes, portable_classes_of, portable_count_classes, portable_rank_changes,
                              portable_spread_bitmaps, portable_differ, portable_list_ones, portable_digest_moves};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define WDX_X86
#include <immintrin.h>

/* pext and pdep are microcode before Zen 3: slower than the portable loop */
static int avx2_works(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt") && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
}

static int avx512_works(void) {
    return avx2_works() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

/* ---- AVX2 */

#define TARGET __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define NAME(f) avx2_##f
TARGET static inline __m256i avx2_classes(const view *v, __m256i exponents) {
    exponents = _mm256_adds_epu8(exponents, _mm256_set1_epi8((char)v->add));
    exponents = _mm256_subs_epu8(exponents, _mm256_set1_epi8((char)v->sub));
    return _mm256_min_epu8(exponents, _mm256_set1_epi8((char)v->top));
}

TARGET static inline __m256i avx2_exponents_2(const view *v, const uint8_t *from) { /* 32 of u16 */
    __m128i shift = _mm_cvtsi32_si128(v->shift);
    __m256i mask = _mm256_set1_epi16((short)v->mask);
    __m256i a = _mm256_and_si256(_mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)from), shift), mask);
    __m256i b = _mm256_and_si256(_mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)(from + 32)), shift), mask);
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
}

TARGET static inline __m256i avx2_exponents_4(const view *v, const uint8_t *from) { /* 32 of u32 */
    __m128i shift = _mm_cvtsi32_si128(v->shift);
    __m256i mask = _mm256_set1_epi32((int)v->mask), x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256((const __m256i *)(from + 32 * i)), shift), mask);
    __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(x[0], x[1]), _mm256_packus_epi32(x[2], x[3]));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

TARGET static inline __m256i avx2_exponents_1(const view *v, const uint8_t *from) { /* 32 of u8 */
    __m256i x = _mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)from), _mm_cvtsi32_si128(v->shift));
    return _mm256_and_si256(x, _mm256_set1_epi8((char)v->mask));
}

TARGET static inline __m256i avx2_classes_32(const view *v, const uint8_t *from, int width) {
    if (width == 1) return avx2_classes(v, avx2_exponents_1(v, from));
    return avx2_classes(v, width == 2 ? avx2_exponents_2(v, from) : avx2_exponents_4(v, from));
}

TARGET static inline uint64_t avx2_two_masks(__m256i low, __m256i high) { /* the highest bit of every byte */
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

TARGET static inline void avx2_slice_block(const view *v, const uint8_t *from, int width, slices *out, uint32_t block) {
    for (int half = 0; half < 2; half++) {
        __m256i classes = avx2_classes_32(v, from + 32 * width * half, width);
        out->half[3][block][half] = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(classes, 4));
        out->half[2][block][half] = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(classes, 5));
        out->half[1][block][half] = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(classes, 6));
        out->half[0][block][half] = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(classes, 7));
    }
}

TARGET static inline __m256i avx2_same(const uint8_t *a, const uint8_t *b, int width, int i) { /* the i-th 32 bytes */
    __m256i x = _mm256_loadu_si256((const __m256i *)(a + 32 * i)), y = _mm256_loadu_si256((const __m256i *)(b + 32 * i));
    return width == 1 ? _mm256_cmpeq_epi8(x, y) : width == 2 ? _mm256_cmpeq_epi16(x, y) : _mm256_cmpeq_epi32(x, y);
}

TARGET static inline __m256i avx2_same_32(const uint8_t *a, const uint8_t *b, int width) { /* 0xFF per equal element */
    if (width == 1) return avx2_same(a, b, 1, 0);
    if (width == 2) return _mm256_permute4x64_epi64(_mm256_packs_epi16(avx2_same(a, b, 2, 0), avx2_same(a, b, 2, 1)), 0xD8);
    __m256i low = _mm256_packs_epi32(avx2_same(a, b, 4, 0), avx2_same(a, b, 4, 1));
    __m256i high = _mm256_packs_epi32(avx2_same(a, b, 4, 2), avx2_same(a, b, 4, 3));
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

TARGET static inline uint64_t avx2_differ_mask(const uint8_t *a, const uint8_t *b, int width) {
    return ~avx2_two_masks(avx2_same_32(a, b, width), avx2_same_32(a + 32 * width, b + 32 * width, width));
}

/* 8 positions at a time; the odd ones of each vector are shifted to where mul_epu32 looks */
TARGET static void avx2_digest_moves(const uint32_t *index, const uint32_t *old, const uint32_t *new, uint32_t count,
                                         uint64_t halves[2]) {
    __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    uint32_t k = 0;
    for (; k + 8 <= count; k += 8) {
        __m256i i = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(index + k)), _mm256_set1_epi32((int)0x9E3779B9u));
        i = _mm256_mullo_epi32(_mm256_xor_si256(i, _mm256_srli_epi32(i, 16)), _mm256_set1_epi32((int)0x85EBCA6Bu));
        i = _mm256_mullo_epi32(_mm256_xor_si256(i, _mm256_srli_epi32(i, 13)), _mm256_set1_epi32((int)0xC2B2AE35u));
        __m256i keys[2];
        keys[0] = _mm256_xor_si256(i, _mm256_srli_epi32(i, 16));
        i = _mm256_xor_si256(keys[0], _mm256_srli_epi32(keys[0], 15));
        i = _mm256_mullo_epi32(i, _mm256_set1_epi32((int)0x2C1B3C6Du));
        keys[1] = _mm256_xor_si256(i, _mm256_srli_epi32(i, 12));
        __m256i from = _mm256_loadu_si256((const __m256i *)(old + k)), to = _mm256_loadu_si256((const __m256i *)(new + k));
        for (int half = 0; half < 2; half++) {
            __m256i key = keys[half], odd = _mm256_srli_epi64(key, 32), sum = sums[half];
            sum = _mm256_add_epi64(sum, _mm256_mul_epu32(key, to));
            sum = _mm256_sub_epi64(sum, _mm256_mul_epu32(key, from));
            sum = _mm256_add_epi64(sum, _mm256_mul_epu32(odd, _mm256_srli_epi64(to, 32)));
            sums[half] = _mm256_sub_epi64(sum, _mm256_mul_epu32(odd, _mm256_srli_epi64(from, 32)));
        }
    }
    for (int half = 0; half < 2; half++) {
        uint64_t four[4];
        _mm256_storeu_si256((__m256i *)four, sums[half]);
        halves[half] += four[0] + four[1] + four[2] + four[3];
    }
    portable_digest_moves(index + k, old + k, new + k, count - k, halves);
}

#include "_scan.h"
static const path AVX2 = {"avx2", avx2_works, avx2_slice_classes, avx2_classes_of, avx2_count_classes, avx2_rank_changes,
                          avx2_spread_bitmaps, avx2_differ, avx2_list_ones, avx2_digest_moves};
#undef TARGET
#undef NAME

/* ---- AVX-512 */

#define TARGET __attribute__((target("avx512f,avx512bw,avx2,bmi,bmi2,popcnt")))
#define NAME(f) avx512_##f

TARGET static inline void avx512_slice_block(const view *v, const uint8_t *from, int width, slices *out, uint32_t block) {
    __m128i shift = _mm_cvtsi32_si128(v->shift);
    __m512i x;
    if (width == 1) {
        x = _mm512_and_si512(_mm512_srl_epi16(_mm512_loadu_si512(from), shift), _mm512_set1_epi8((char)v->mask));
    } else if (width == 2) {
        __m512i mask = _mm512_set1_epi16((short)v->mask);
        __m512i a = _mm512_and_si512(_mm512_srl_epi16(_mm512_loadu_si512(from), shift), mask);
        __m512i b = _mm512_and_si512(_mm512_srl_epi16(_mm512_loadu_si512(from + 64), shift), mask);
        x = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)), _mm512_cvtepi16_epi8(b), 1);
    } else {
        __m512i mask = _mm512_set1_epi32((int)v->mask);
        __m128i q[4];
        for (int i = 0; i < 4; i++)
            q[i] = _mm512_cvtepi32_epi8(_mm512_and_si512(_mm512_srl_epi32(_mm512_loadu_si512(from + 64 * i), shift), mask));
        x = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(q[1], q[0])), _mm256_set_m128i(q[3], q[2]), 1);
    }
    x = _mm512_subs_epu8(_mm512_adds_epu8(x, _mm512_set1_epi8((char)v->add)), _mm512_set1_epi8((char)v->sub));
    x = _mm512_min_epu8(x, _mm512_set1_epi8((char)v->top));
    for (int j = 0; j < 4; j++) out->bit[j][block] = _mm512_test_epi8_mask(x, _mm512_set1_epi8((char)(1 << j)));
}

TARGET static inline uint64_t avx512_differ_mask(const uint8_t *a, const uint8_t *b, int width) {
    uint64_t mask = 0;
    for (int i = 0; i < width; i++) { /* 64 bytes of each */
        __m512i x = _mm512_loadu_si512(a + 64 * i), y = _mm512_loadu_si512(b + 64 * i);
        if (width == 1) return _mm512_cmpneq_epi8_mask(x, y);
        uint64_t some = width == 2 ? (uint64_t)_mm512_cmpneq_epi16_mask(x, y) : (uint64_t)_mm512_cmpneq_epi32_mask(x, y);
        mask |= some << (64 / width * i);
    }
    return mask;
}

#include "_scan.h"
static const path AVX512 = {"avx512", avx512_works, avx512_slice_classes, avx512_classes_of, avx512_count_classes, avx512_rank_changes,
                            avx512_spread_bitmaps, avx512_differ, avx512_list_ones, avx2_digest_moves};
#undef TARGET
#undef NAME

static const path *const PATHS[] = {&AVX512, &AVX2, &PORTABLE};
#else
static const path *const PATHS[] = {&PORTABLE};
#endif

#define PATH_COUNT ((int)(sizeof PATHS / sizeof *PATHS))

#endif
