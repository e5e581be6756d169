/* Vectors of 16 floats for any compiler with GNU vectors and any processor. Multiply-add rounds twice here. */
typedef float Quarter __attribute__((vector_size(16)));
typedef int32_t QuarterInt __attribute__((vector_size(16)));
typedef struct {
    Quarter q[4];
} V;

#define EACH(i) for (int i = 0; i < 4; i++)

INLINE V v_set(float x) {
    V v;
    EACH(i) v.q[i] = (Quarter){x, x, x, x};
    return v;
}
INLINE V v_load(const float *p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void v_store(float *p, V v) { memcpy(p, &v, sizeof v); }
INLINE V v_load_bf16(const uint16_t *p) {
    uint32_t wide[LANES];
    for (int i = 0; i < LANES / 2; i++) {
        wide[i] = (uint32_t)p[2 * i] << 16;
        wide[i + LANES / 2] = (uint32_t)p[2 * i + 1] << 16;
    }
    V v;
    memcpy(&v, wide, sizeof v);
    return v;
}
INLINE V v_add(V a, V b) {
    EACH(i) a.q[i] += b.q[i];
    return a;
}
INLINE V v_sub(V a, V b) {
    EACH(i) a.q[i] -= b.q[i];
    return a;
}
INLINE V v_mul(V a, V b) {
    EACH(i) a.q[i] *= b.q[i];
    return a;
}
INLINE V v_div(V a, V b) {
    EACH(i) a.q[i] /= b.q[i];
    return a;
}
INLINE V v_fma(V a, V b, V c) {
    EACH(i) c.q[i] += a.q[i] * b.q[i];
    return c;
}
INLINE V v_pick(V a, V b, QuarterInt mask[4]) { /* mask ? a : b */
    V v;
    EACH(i) v.q[i] = (Quarter)(((QuarterInt)a.q[i] & mask[i]) | ((QuarterInt)b.q[i] & ~mask[i]));
    return v;
}
/* b where either is NaN, as on x86 */
INLINE V v_max(V a, V b) {
    QuarterInt above[4];
    EACH(i) above[i] = a.q[i] > b.q[i];
    return v_pick(a, b, above);
}
INLINE V v_min(V a, V b) {
    QuarterInt below[4];
    EACH(i) below[i] = a.q[i] < b.q[i];
    return v_pick(a, b, below);
}
/* 0 where `by` is below `limit`, else x */
INLINE V v_zero_below(V x, V by, float limit) {
    QuarterInt below[4];
    Quarter bound = {limit, limit, limit, limit};
    EACH(i) below[i] = by.q[i] < bound;
    return v_pick(v_set(0.0f), x, below);
}
/* 2^n, where n is an integer that was added to ROUNDER */
INLINE V v_power_of_two(V shifted) {
    EACH(i) shifted.q[i] = (Quarter)(((QuarterInt)shifted.q[i] << 23) + 0x3f800000);
    return shifted;
}
