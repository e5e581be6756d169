/* Rotation, the store of keys and values, and attention over their blocks. */
#include "core.h"

#include <math.h>
#include <string.h>

#define STORE_EACH 4  /* rows of one item */
#define QUERIES_EACH 16 /* neighbouring rows of one sequence in one tile: they read a block of keys once */

static inline int smaller(int a, int b) { return a < b ? a : b; }

static inline const float *block_at(const float *base, const KvLayer *kv, int block, int head) {
    return base + block * kv->block_stride + head * kv->head_stride;
}

typedef struct {
    const Kernels *kernels;
    const HeadShape *shape;
    const RowTable *rows;
    float *qkv;
    const KvLayer *kv;
} Store;

static void rotate_row(const Store *s, float *head, int position) {
    const HeadShape *shape = s->shape;
    const int dim = shape->head_dim;
    const float *cosine = shape->rope + (size_t)position * dim, *sine = cosine + shape->rope_positions * dim;
    for (int h = 0; h < shape->heads + shape->kv_heads; h++)
        s->kernels->norm_rotate(head + h * dim, h < shape->heads ? shape->q_norm : shape->k_norm, cosine, sine,
                                shape->norm_eps, dim);
}

static void store_row(const Store *s, int row) {
    const HeadShape *shape = s->shape;
    const int dim = shape->head_dim, position = s->rows->position[row];
    float *head = s->qkv + (size_t)row * (shape->heads + 2 * shape->kv_heads) * dim;
    if (shape->rope) rotate_row(s, head, position);
    const int32_t *table = s->rows->table + (size_t)s->rows->sequence[row] * s->rows->table_width;
    const int block = table[position / KV_BLOCK], place = position % KV_BLOCK;
    const float *k = head + shape->heads * dim, *v = k + shape->kv_heads * dim;
    for (int h = 0; h < shape->kv_heads; h++, k += dim, v += dim) {
        float *keys = (float *)block_at(s->kv->keys, s->kv, block, h) + place / LANES * LANES * s->kv->dim + place % LANES;
        float *values = (float *)block_at(s->kv->values, s->kv, block, h) + (ptrdiff_t)place * s->kv->dim;
        for (int i = 0; i < dim; i++) keys[i * LANES] = k[i];
        memcpy(values, v, (size_t)dim * sizeof *v);
    }
}

static void store_item(void *shared, int item, int thread) {
    (void)thread;
    const Store *s = shared;
    const int end = smaller(s->rows->rows, (item + 1) * STORE_EACH);
    for (int row = item * STORE_EACH; row < end; row++) store_row(s, row);
}

void op_rotate_store(Pool *pool, const HeadShape *shape, const RowTable *rows, float *qkv, const KvLayer *kv) {
    Store s = {pool_kernels(pool), shape, rows, qkv, kv};
    pool_run(pool, (rows->rows + STORE_EACH - 1) / STORE_EACH, store_item, &s);
}

typedef struct {
    const Kernels *kernels;
    float *x;
    const float *weights, *cosine, *sine;
    float eps;
    int rows, heads, n;
} Rotate;

static void rotate_item(void *shared, int item, int thread) {
    (void)thread;
    const Rotate *t = shared;
    const int end = smaller(t->rows, (item + 1) * STORE_EACH), n = t->n;
    for (int row = item * STORE_EACH; row < end; row++)
        for (int h = 0; h < t->heads; h++)
            t->kernels->norm_rotate(t->x + ((size_t)row * t->heads + h) * n, t->weights ? t->weights + h * n : NULL,
                                    t->cosine + (size_t)row * n, t->sine + (size_t)row * n, t->eps, n);
}

void op_norm_rotate(Pool *pool, float *x, const float *weights, const float *cosine, const float *sine, float eps,
                    int rows, int heads, int n) {
    Rotate t = {pool_kernels(pool), x, weights, cosine, sine, eps, rows, heads, n};
    pool_run(pool, (rows + STORE_EACH - 1) / STORE_EACH, rotate_item, &t);
}

typedef struct {
    Pool *pool;
    const HeadShape *shape;
    const RowTable *rows;
    const float *qkv;
    const KvLayer *kv;
    float *out;
    const int32_t *first; /* row where each tile begins; one more at the end */
} Attend;

static void attend_item(void *shared, int item, int thread) {
    const Attend *a = shared;
    const HeadShape *shape = a->shape;
    const int group = shape->heads / shape->kv_heads, dim = shape->head_dim, kv_head = item % shape->kv_heads;
    const int begin = a->first[item / shape->kv_heads], end = a->first[item / shape->kv_heads + 1];
    const int count = (end - begin) * group;
    const float *q[count];
    float *out[count];
    int seen[count];
    for (int i = 0; i < count; i++) {
        const int row = begin + i / group, head = kv_head * group + i % group;
        q[i] = a->qkv + ((size_t)row * (shape->heads + 2 * shape->kv_heads) + head) * dim;
        out[i] = a->out + ((size_t)row * shape->heads + head) * dim;
        seen[i] = a->rows->position[row] + 1;
    }
    const AttendTile tile = {
        .q = q,
        .out = out,
        .seen = seen,
        .rows = count,
        .head_dim = dim,
        .scale = 1.0f / sqrtf((float)dim),
        .table = a->rows->table + (size_t)a->rows->sequence[begin] * a->rows->table_width,
        .keys = block_at(a->kv->keys, a->kv, 0, kv_head),
        .values = block_at(a->kv->values, a->kv, 0, kv_head),
        .block_stride = a->kv->block_stride,
        .dim = a->kv->dim,
        .scratch = pool_scratch(a->pool, thread),
    };
    pool_kernels(a->pool)->attend(&tile);
}

/* Neighbouring rows of one sequence form a tile. Returns the number of tiles. */
static int cut_tiles(const RowTable *rows, int32_t *first) {
    int tiles = 0;
    for (int row = 0; row < rows->rows; row++) {
        const int begins = !row || rows->sequence[row] != rows->sequence[row - 1] || row - first[tiles - 1] == QUERIES_EACH;
        if (begins) first[tiles++] = row;
    }
    first[tiles] = rows->rows;
    return tiles;
}

int op_attend(Pool *pool, const HeadShape *shape, const RowTable *rows, const float *qkv, const KvLayer *kv, float *out) {
    int longest = 0;
    for (int row = 0; row < rows->rows; row++)
        if (rows->position[row] >= longest) longest = rows->position[row] + 1;
    const size_t width = ((size_t)longest + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
    int32_t *first = pool_take(pool, ((size_t)rows->rows + 1) * sizeof *first);
    if (!first || !pool_reserve(pool, width * QUERIES_EACH * (size_t)(shape->heads / shape->kv_heads))) return 0;
    Attend a = {pool, shape, rows, qkv, kv, out, first};
    pool_run(pool, cut_tiles(rows, first) * shape->kv_heads, attend_item, &a);
    return 1;
}
