/* A decoder's forward over a table of rows: tokens of any sequences at any positions.
 *
 * Rows run through all layers in chunks of CHUNK, which bounds the memory. A row needs the keys of the earlier positions
 * of its sequence: written by an earlier call, or by rows before it in this table.
 */
#include "core.h"

#include <string.h>

#define CHUNK 512

typedef struct {
    Pool *pool;
    const Decoder *d;
    Forward *work;
    int begin; /* of the chunk */
    RowTable rows;
    float *x, *normed, *qkv, *mixed, *y, *also, *scores, *gates, *hidden, *inner, *shared_gate;
    int32_t *chosen;
} Step;

static RowView view(const float *x, int rows, ptrdiff_t n) { return (RowView){x, NULL, n, rows}; }

static int larger(int a, int b) { return a > b ? a : b; }

static int take_buffers(Step *s, int rows) {
    const Decoder *d = s->d;
    const size_t n = (size_t)rows * sizeof(float), qkv = (size_t)(d->heads + 2 * d->kv_heads) * d->head_dim;
    const int inner = larger(d->inner, d->shared_inner);
    s->x = pool_take(s->pool, n * d->width);
    s->normed = pool_take(s->pool, n * d->width);
    s->y = pool_take(s->pool, n * d->width);
    s->also = pool_take(s->pool, n * d->width);
    s->qkv = pool_take(s->pool, n * qkv);
    s->mixed = pool_take(s->pool, n * d->heads * d->head_dim);
    s->scores = pool_take(s->pool, n * d->experts);
    s->gates = pool_take(s->pool, n * d->top_k);
    s->chosen = pool_take(s->pool, n * d->top_k);
    s->hidden = pool_take(s->pool, n * 2 * inner);
    s->inner = pool_take(s->pool, n * inner);
    s->shared_gate = pool_take(s->pool, n);
    return s->x && s->normed && s->y && s->also && s->qkv && s->mixed && s->scores && s->gates && s->chosen && s->hidden &&
           s->inner && s->shared_gate;
}

static int attention(Step *s, const Layer *layer, int index) {
    const Decoder *d = s->d;
    const Forward *w = s->work;
    const int rows = s->rows.rows, wide = (d->heads + 2 * d->kv_heads) * d->head_dim, mixed = d->heads * d->head_dim;
    const HeadShape shape = {d->heads,        d->kv_heads,     d->head_dim, d->norm_eps,
                             layer->q_norm,   layer->k_norm,   w->rope,     w->rope_positions};
    const KvLayer kv = {w->keys + index * w->layer_stride, w->values + index * w->layer_stride, w->block_stride,
                        w->head_stride, panels_of(d->head_dim) * LANES};
    op_rms_norm(s->pool, s->x, layer->attn_norm, d->norm_eps, rows, d->width, s->normed);
    op_product(s->pool, &layer->qkv, view(s->normed, rows, d->width), s->qkv, wide, layer->qkv_bias);
    op_rotate_store(s->pool, &shape, &s->rows, s->qkv, &kv);
    if (!op_attend(s->pool, &shape, &s->rows, s->qkv, &kv, s->mixed)) return 0;
    op_product(s->pool, &layer->out, view(s->mixed, rows, mixed), s->y, d->width, layer->out_bias);
    op_add(s->pool, s->y, rows, d->width, s->x);
    return 1;
}

/* out = down(swiglu(gate_up normed)) */
static void dense(Step *s, const Panels *gate_up, const Panels *down, float *out) {
    const int rows = s->rows.rows, inner = down->cols;
    op_product(s->pool, gate_up, view(s->normed, rows, s->d->width), s->hidden, 2 * inner, NULL);
    op_swiglu(s->pool, s->hidden, rows, inner, s->inner);
    op_product(s->pool, down, view(s->inner, rows, inner), out, s->d->width, NULL);
}

static void add_shared(Step *s, const Layer *layer) {
    const int rows = s->rows.rows, width = s->d->width, gated = layer->shared_gate.data != NULL;
    dense(s, &layer->shared_gate_up, &layer->shared_down, s->also);
    if (gated) op_product(s->pool, &layer->shared_gate, view(s->normed, rows, width), s->shared_gate, 1, NULL);
    op_add_gated(s->pool, s->also, gated ? s->shared_gate : NULL, rows, width, s->y);
}

static int mixture(Step *s, const Layer *layer, int index) {
    const Decoder *d = s->d;
    Forward *w = s->work;
    const int rows = s->rows.rows, k = d->top_k;
    const ptrdiff_t stride = (ptrdiff_t)d->mixtures * k, first = s->begin * stride + index * k;
    const RouteShape route = {d->experts, k, d->gating, d->norm_topk, d->groups, d->top_groups, d->scaling,
                              layer->choice_bias};
    const ExpertShape experts = {layer->expert_gate_up, layer->expert_down, d->experts, k, d->expert_inner, d->width};
    op_product(s->pool, &layer->router, view(s->normed, rows, d->width), s->scores, d->experts, NULL);
    if (!op_route(s->pool, &route, s->scores, rows, w->route_in ? w->route_in + first : NULL, stride, w->floor,
                  s->chosen, s->gates, w->counts))
        return 0;
    for (int r = 0; r < rows && w->route_out; r++)
        for (int j = 0; j < k; j++) w->route_out[first + r * stride + j] = (int16_t)s->chosen[r * k + j];
    if (!op_experts(s->pool, &experts, s->normed, rows, s->chosen, s->gates, s->y, NULL, NULL)) return 0;
    if (layer->shared_down.data) add_shared(s, layer);
    return 1;
}

static int layers(Step *s) {
    const Decoder *d = s->d;
    for (int i = 0, mixtures = 0; i < d->layers; i++) {
        const Layer *layer = d->layer + i;
        const Mark mark = pool_mark(s->pool);
        if (!attention(s, layer, i)) return 0;
        op_rms_norm(s->pool, s->x, layer->mlp_norm, d->norm_eps, s->rows.rows, d->width, s->normed);
        if (layer->mixture) {
            if (!mixture(s, layer, mixtures++)) return 0;
        } else {
            dense(s, &layer->gate_up, &layer->down, s->y);
        }
        op_add(s->pool, s->y, s->rows.rows, d->width, s->x);
        pool_release(s->pool, mark);
    }
    return 1;
}

/* The asks of this chunk, with rows counted from its begin. */
static int answer(Step *s, int first, int count) {
    const Asks *all = &s->work->asks;
    if (!count) return 1;
    int32_t *row = pool_take(s->pool, (size_t)count * sizeof *row);
    if (!row) return 0;
    for (int i = 0; i < count; i++) row[i] = all->row[first + i] - s->begin;
    const Asks asks = {count, row, all->target + first, all->position + first, all->temperature + first,
                       all->top_p + first, all->seed + first, all->token + first, all->logprob + first};
    return op_head(s->pool, &s->d->head, s->normed, &asks);
}

static int chunk(Step *s, int rows, int *asked) {
    const Decoder *d = s->d;
    Forward *w = s->work;
    const int first = *asked, end = s->begin + rows;
    if (!take_buffers(s, rows)) return 0;
    s->rows = w->rows;
    s->rows.rows = rows;
    s->rows.sequence += s->begin;
    s->rows.position += s->begin;
    for (int r = 0; r < rows; r++) packed_row(&d->embed, w->token[s->begin + r], s->x + (size_t)r * d->width);
    if (!layers(s)) return 0;
    op_rms_norm(s->pool, s->x, d->norm, d->norm_eps, rows, d->width, s->normed);
    if (w->hidden)
        memcpy(w->hidden + (size_t)s->begin * d->width, s->normed, (size_t)rows * d->width * sizeof(float));
    while (*asked < w->asks.count && w->asks.row[*asked] < end) ++*asked;
    return answer(s, first, *asked - first);
}

int forward(Pool *pool, const Decoder *decoder, Forward *work) {
    int asked = 0;
    for (int begin = 0; begin < work->rows.rows; begin += CHUNK) {
        const int left = work->rows.rows - begin;
        const Mark mark = pool_mark(pool);
        Step s = {.pool = pool, .d = decoder, .work = work, .begin = begin};
        if (!chunk(&s, left < CHUNK ? left : CHUNK, &asked)) return 0;
        pool_release(pool, mark);
    }
    return 1;
}
