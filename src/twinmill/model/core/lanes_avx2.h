/* Vectors of 16 floats as two of 8, AVX2 and FMA. */
typedef struct {
    __m256 a, b;
} V;

INLINE V v_set(float x) { return (V){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE V v_load(const float *p) { return (V){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void v_store(float *p, V v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
INLINE V v_load_bf16(const uint16_t *p) {
    __m256i words = _mm256_loadu_si256((const __m256i *)p);
    return (V){_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
               _mm256_and_ps(_mm256_castsi256_ps(words), _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)))};
}
INLINE V v_add(V x, V y) { return (V){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INLINE V v_sub(V x, V y) { return (V){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INLINE V v_mul(V x, V y) { return (V){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INLINE V v_div(V x, V y) { return (V){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INLINE V v_fma(V x, V y, V z) { return (V){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INLINE V v_max(V x, V y) { return (V){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INLINE V v_min(V x, V y) { return (V){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INLINE V v_zero_below(V x, V by, float limit) {
    __m256 bound = _mm256_set1_ps(limit);
    return (V){_mm256_andnot_ps(_mm256_cmp_ps(by.a, bound, _CMP_LT_OQ), x.a),
               _mm256_andnot_ps(_mm256_cmp_ps(by.b, bound, _CMP_LT_OQ), x.b)};
}
INLINE __m256 half_power(__m256 shifted) {
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}
INLINE V v_power_of_two(V shifted) { return (V){half_power(shifted.a), half_power(shifted.b)}; }
