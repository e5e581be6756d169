/* The AVX-512 instructions of lanes_avx512.h spelled in AVX2, to run that level where the processor lacks it. */
#include <immintrin.h>

typedef struct {
    __m256 a, b;
} Emulated;
typedef struct {
    __m256i a, b;
} EmulatedInt;

#define __m512 Emulated
#define __m512i EmulatedInt
#define EMU static inline __attribute__((always_inline))
#define BOTH(NAME, AVX2) \
    EMU Emulated NAME(Emulated x, Emulated y) { return (Emulated){AVX2(x.a, y.a), AVX2(x.b, y.b)}; }
BOTH(emu_add, _mm256_add_ps)
BOTH(emu_sub, _mm256_sub_ps)
BOTH(emu_mul, _mm256_mul_ps)
BOTH(emu_div, _mm256_div_ps)
BOTH(emu_max, _mm256_max_ps)
BOTH(emu_min, _mm256_min_ps)
EMU Emulated emu_set(float x) { return (Emulated){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
EMU Emulated emu_load(const float *p) { return (Emulated){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
EMU void emu_store(float *p, Emulated x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
EMU Emulated emu_fma(Emulated x, Emulated y, Emulated z) {
    return (Emulated){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
EMU Emulated emu_to_float(EmulatedInt x) { return (Emulated){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
EMU EmulatedInt emu_to_int(Emulated x) { return (EmulatedInt){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
EMU EmulatedInt emu_low(__m256i x) { return (EmulatedInt){x, _mm256_setzero_si256()}; }
EMU EmulatedInt emu_insert_high(EmulatedInt x, __m256i high, int one) {
    (void)one;
    return (EmulatedInt){x.a, high};
}
EMU EmulatedInt emu_shift(EmulatedInt x, int bits) {
    return (EmulatedInt){_mm256_slli_epi32(x.a, bits), _mm256_slli_epi32(x.b, bits)};
}
EMU EmulatedInt emu_add_int(EmulatedInt x, EmulatedInt y) {
    return (EmulatedInt){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
EMU EmulatedInt emu_set_int(int x) { return (EmulatedInt){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
EMU Emulated emu_not_less(Emulated x, Emulated y, int unused) { /* a mask as wide as the vector */
    (void)unused;
    return (Emulated){_mm256_cmp_ps(x.a, y.a, _CMP_NLT_UQ), _mm256_cmp_ps(x.b, y.b, _CMP_NLT_UQ)};
}
EMU Emulated emu_mask(Emulated mask, Emulated x) {
    return (Emulated){_mm256_and_ps(mask.a, x.a), _mm256_and_ps(mask.b, x.b)};
}

#define _mm512_set1_ps emu_set
#define _mm512_loadu_ps emu_load
#define _mm512_storeu_ps emu_store
#define _mm512_add_ps emu_add
#define _mm512_sub_ps emu_sub
#define _mm512_mul_ps emu_mul
#define _mm512_div_ps emu_div
#define _mm512_max_ps emu_max
#define _mm512_min_ps emu_min
#define _mm512_fmadd_ps emu_fma
#define _mm512_castsi512_ps emu_to_float
#define _mm512_castps_si512 emu_to_int
#define _mm512_castsi256_si512 emu_low
#define _mm512_inserti64x4 emu_insert_high
#define _mm512_slli_epi32 emu_shift
#define _mm512_add_epi32 emu_add_int
#define _mm512_set1_epi32 emu_set_int
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emu_not_less
#define _mm512_maskz_mov_ps emu_mask
