/* Vectors of 16 floats, AVX-512F. Every operation rounds as AVX2 with FMA does: the two levels agree to the bit. */
typedef struct {
    __m512 a;
} V;

INLINE V v_set(float x) { return (V){_mm512_set1_ps(x)}; }
INLINE V v_load(const float *p) { return (V){_mm512_loadu_ps(p)}; }
INLINE void v_store(float *p, V v) { _mm512_storeu_ps(p, v.a); }
INLINE V v_load_bf16(const uint16_t *p) {
    __m256i words = _mm256_loadu_si256((const __m256i *)p);
    __m256i low = _mm256_slli_epi32(words, 16), high = _mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000));
    return (V){_mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1))};
}
INLINE V v_add(V x, V y) { return (V){_mm512_add_ps(x.a, y.a)}; }
INLINE V v_sub(V x, V y) { return (V){_mm512_sub_ps(x.a, y.a)}; }
INLINE V v_mul(V x, V y) { return (V){_mm512_mul_ps(x.a, y.a)}; }
INLINE V v_div(V x, V y) { return (V){_mm512_div_ps(x.a, y.a)}; }
INLINE V v_fma(V x, V y, V z) { return (V){_mm512_fmadd_ps(x.a, y.a, z.a)}; }
INLINE V v_max(V x, V y) { return (V){_mm512_max_ps(x.a, y.a)}; }
INLINE V v_min(V x, V y) { return (V){_mm512_min_ps(x.a, y.a)}; }
INLINE V v_zero_below(V x, V by, float limit) {
    return (V){_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(by.a, _mm512_set1_ps(limit), _CMP_NLT_UQ), x.a)};
}
INLINE V v_power_of_two(V shifted) {
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(shifted.a), 23);
    return (V){_mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)))};
}
