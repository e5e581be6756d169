/* The same passes for every machine, and how to choose. All give the same result. */
#ifndef WDX_PATHS_H
#define WDX_PATHS_H

#include "_format.h"

typedef struct {
    const char *name;
    int (*works)(void);
    void (*count_classes)(const view *v, uint32_t *sizes);
    void (*rank_changes)(const view *v, const uint32_t *index, const uint8_t *classes_k, uint32_t count, uint32_t wanted,
                         uint32_t *ranks, uint32_t *sizes);
    void (*spread_bitmaps)(const view *v, uint8_t *const *bitmaps, uint32_t wanted, uint64_t *changed);
    void (*differ)(const uint8_t *before, const uint8_t *after, int width, uint32_t blocks, uint64_t *changed);
    uint32_t (*list_ones)(const uint64_t *words, uint32_t count, uint32_t first, uint32_t *index);
    uint32_t (*digest_moves)(const uint32_t *index, const uint32_t *old, const uint32_t *new, uint32_t count,
                             uint64_t halves[2]);
} path;

/* ---- portable */

static int portable_works(void) { return 1; }

static void portable_count_classes(const view *v, uint32_t *sizes) {
    memset(sizes, 0, CLASSES_MAX * sizeof *sizes);
    for (uint32_t i = 0; i < v->size; i++) sizes[class_of(v, load_bits(v->bits, v->width, i))]++;
}

static void portable_rank_changes(const view *v, const uint32_t *index, const uint8_t *classes_k, uint32_t count,
                                  uint32_t wanted, uint32_t *ranks, uint32_t *sizes) {
    uint32_t i = 0;
    (void)wanted;
    memset(sizes, 0, CLASSES_MAX * sizeof *sizes);
    for (uint32_t k = 0; k < count; k++) {
        for (; i < index[k]; i++) sizes[class_of(v, load_bits(v->bits, v->width, i))]++;
        ranks[k] = sizes[classes_k[k]];
    }
    for (; i < v->size; i++) sizes[class_of(v, load_bits(v->bits, v->width, i))]++;
}

static void portable_spread_bitmaps(const view *v, uint8_t *const *bitmaps, uint32_t wanted, uint64_t *changed) {
    uint32_t offset[CLASSES_MAX] = {0};
    memset(changed, 0, (v->size + BLOCK - 1) / BLOCK * sizeof *changed);
    for (uint32_t i = 0; i < v->size; i++) {
        int c = class_of(v, load_bits(v->bits, v->width, i));
        uint32_t at = offset[c]++;
        if (wanted >> c & 1) changed[i / BLOCK] |= (uint64_t)(bitmaps[c][at >> 3] >> (at & 7) & 1) << (i % BLOCK);
    }
}

static void portable_differ(const uint8_t *before, const uint8_t *after, int width, uint32_t blocks, uint64_t *changed) {
    size_t step = (size_t)BLOCK * width;
    for (uint32_t b = 0; b < blocks; b++, before += step, after += step) {
        changed[b] = 0;
        if (memcmp(before, after, step) == 0) continue;
        for (uint32_t i = 0; i < BLOCK; i++)
            changed[b] |= (uint64_t)(load_bits(before, width, i) != load_bits(after, width, i)) << i;
    }
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

/* Adds (new - old) * key; old == NULL counts as zeros, index == NULL as 0, 1, 2, ... Returns how many were done. */
static uint32_t portable_digest_moves(const uint32_t *index, const uint32_t *old, const uint32_t *new, uint32_t count,
                                      uint64_t halves[2]) {
    for (uint32_t k = 0; k < count; k++) {
        uint32_t one = key_one(index[k]);
        uint64_t moved = (uint64_t)new[k] - old[k];
        halves[0] += moved * one;
        halves[1] += moved * key_two(one);
    }
    return count;
}

static const path PORTABLE = {"portable", portable_works, portable_count_classes, portable_rank_changes,
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
typedef struct { __m256i low, high; } avx2_block;
#define block avx2_block

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

TARGET static inline avx2_block avx2_load_block(const view *v, const uint8_t *from) {
    avx2_block b;
    switch (v->width) {
    case 1: b.low = avx2_exponents_1(v, from), b.high = avx2_exponents_1(v, from + 32); break;
    case 2: b.low = avx2_exponents_2(v, from), b.high = avx2_exponents_2(v, from + 64); break;
    default: b.low = avx2_exponents_4(v, from), b.high = avx2_exponents_4(v, from + 128);
    }
    b.low = avx2_classes(v, b.low), b.high = avx2_classes(v, b.high);
    return b;
}

TARGET static inline uint64_t avx2_two_masks(__m256i low, __m256i high) {
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

TARGET static inline uint64_t avx2_equal_mask(avx2_block b, int c) {
    __m256i wanted = _mm256_set1_epi8((char)c);
    return avx2_two_masks(_mm256_cmpeq_epi8(b.low, wanted), _mm256_cmpeq_epi8(b.high, wanted));
}

TARGET static inline __m256i avx2_same_32(const uint8_t *a, const uint8_t *b, int width) { /* 0xFF per equal element */
#define PAIR(i) _mm256_loadu_si256((const __m256i *)(a + 32 * (i))), _mm256_loadu_si256((const __m256i *)(b + 32 * (i)))
    if (width == 1) return _mm256_cmpeq_epi8(PAIR(0));
    if (width == 2)
        return _mm256_permute4x64_epi64(_mm256_packs_epi16(_mm256_cmpeq_epi16(PAIR(0)), _mm256_cmpeq_epi16(PAIR(1))), 0xD8);
    __m256i low = _mm256_packs_epi32(_mm256_cmpeq_epi32(PAIR(0)), _mm256_cmpeq_epi32(PAIR(1)));
    __m256i high = _mm256_packs_epi32(_mm256_cmpeq_epi32(PAIR(2)), _mm256_cmpeq_epi32(PAIR(3)));
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#undef PAIR
}

TARGET static inline uint64_t avx2_differ_mask(const uint8_t *a, const uint8_t *b, int width) {
    return ~avx2_two_masks(avx2_same_32(a, b, width), avx2_same_32(a + 32 * width, b + 32 * width, width));
}

/* 8 positions at a time; the odd ones of each vector are shifted to where mul_epu32 looks */
TARGET static uint32_t avx2_digest_moves(const uint32_t *index, const uint32_t *old, const uint32_t *new, uint32_t count,
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
    return k + portable_digest_moves(index + k, old + k, new + k, count - k, halves);
}

#include "_scan.h"
static const path AVX2 = {"avx2", avx2_works, avx2_count_classes, avx2_rank_changes,
                          avx2_spread_bitmaps, avx2_differ, avx2_list_ones, avx2_digest_moves};
#undef TARGET
#undef NAME
#undef block

/* ---- AVX-512 */

#define TARGET __attribute__((target("avx512f,avx512bw,avx2,bmi,bmi2,popcnt")))
#define NAME(f) avx512_##f
typedef __m512i avx512_block;
#define block avx512_block

TARGET static inline __m512i avx512_load_block(const view *v, const uint8_t *from) {
    __m128i shift = _mm_cvtsi32_si128(v->shift);
    __m512i x;
    if (v->width == 1) {
        x = _mm512_and_si512(_mm512_srl_epi16(_mm512_loadu_si512(from), shift), _mm512_set1_epi8((char)v->mask));
    } else if (v->width == 2) {
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
    return _mm512_min_epu8(x, _mm512_set1_epi8((char)v->top));
}

TARGET static inline uint64_t avx512_equal_mask(__m512i b, int c) {
    return _mm512_cmpeq_epi8_mask(b, _mm512_set1_epi8((char)c));
}

TARGET static inline uint64_t avx512_differ_mask(const uint8_t *a, const uint8_t *b, int width) {
#define PAIR(i) _mm512_loadu_si512(a + 64 * (i)), _mm512_loadu_si512(b + 64 * (i))
    if (width == 1) return _mm512_cmpneq_epi8_mask(PAIR(0));
    if (width == 2) return _mm512_cmpneq_epi16_mask(PAIR(0)) | (uint64_t)_mm512_cmpneq_epi16_mask(PAIR(1)) << 32;
    return _mm512_cmpneq_epi32_mask(PAIR(0)) | (uint64_t)_mm512_cmpneq_epi32_mask(PAIR(1)) << 16 |
           (uint64_t)_mm512_cmpneq_epi32_mask(PAIR(2)) << 32 | (uint64_t)_mm512_cmpneq_epi32_mask(PAIR(3)) << 48;
#undef PAIR
}

#include "_scan.h"
static const path AVX512 = {"avx512", avx512_works, avx512_count_classes, avx512_rank_changes,
                            avx512_spread_bitmaps, avx512_differ, avx512_list_ones, avx2_digest_moves};
#undef TARGET
#undef NAME
#undef block

static const path *const PATHS[] = {&AVX512, &AVX2, &PORTABLE};
#else
static const path *const PATHS[] = {&PORTABLE};
#endif

#define PATH_COUNT ((int)(sizeof PATHS / sizeof *PATHS))

#endif
