/* One operator over many rows, split over the pool. Items are small enough to balance and large enough to pay. */
#include "core.h"

#include <string.h>

#define PANELS_EACH 4 /* panels of one item of a product */
#define ROWS_EACH 48  /* rows of one item: their inputs stay in the second cache while panels pass */
#define LIGHT_EACH 8  /* rows of one item of a cheap operator */

static inline int pieces(int n, int each) { return (n + each - 1) / each; }
static inline int smaller(int a, int b) { return a < b ? a : b; }

typedef struct {
    const Kernels *kernels;
    const Panels *w;
    RowView x;
    float *y;
    ptrdiff_t y_stride;
    const float *bias;
    int columns;
} Product;

static void product_piece(const Kernels *kernels, const Panels *w, const RowView *x, float *y, ptrdiff_t y_stride,
                          const float *bias, int first_panel, int first_row) {
    const int panels = smaller(panels_of(w->rows), first_panel + PANELS_EACH);
    const int rows = smaller(x->rows - first_row, ROWS_EACH);
    const float *from[ROWS_EACH] = {0};
    float *to[ROWS_EACH] = {0};
    for (int r = 0; r < rows; r++) {
        const int row = first_row + r;
        from[r] = x->x + (x->index ? x->index[row] : row) * x->stride;
        to[r] = y + row * y_stride;
    }
    kernels->product(w, first_panel, panels, from, rows, to);
    if (!bias) return;
    const int begin = first_panel * LANES, end = smaller(panels * LANES, w->rows);
    for (int r = 0; r < rows; r++) kernels->add_scaled(bias + begin, 1.0f, end - begin, to[r] + begin);
}

static void product_item(void *shared, int item, int thread) {
    (void)thread;
    const Product *p = shared;
    product_piece(p->kernels, p->w, &p->x, p->y, p->y_stride, p->bias, item % p->columns * PANELS_EACH,
                  item / p->columns * ROWS_EACH);
}

void op_product(Pool *pool, const Panels *w, RowView x, float *y, ptrdiff_t y_stride, const float *bias) {
    Product p = {pool_kernels(pool), w, x, y, y_stride, bias, pieces(panels_of(w->rows), PANELS_EACH)};
    pool_run(pool, p.columns * pieces(x.rows, ROWS_EACH), product_item, &p);
}

typedef struct {
    const Kernels *kernels;
    const float *x, *weight;
    float eps;
    int rows, n;
    float *y, *gate;
} Light;

static void norm_item(void *shared, int item, int thread) {
    (void)thread;
    const Light *l = shared;
    const int end = smaller(l->rows, (item + 1) * LIGHT_EACH);
    for (int r = item * LIGHT_EACH; r < end; r++) {
        const size_t at = (size_t)r * l->n;
        l->kernels->rms_norm(l->x + at, l->weight, l->eps, l->n, l->y + at);
    }
}

void op_rms_norm(Pool *pool, const float *x, const float *weight, float eps, int rows, int n, float *y) {
    Light l = {.kernels = pool_kernels(pool), .x = x, .weight = weight, .eps = eps, .rows = rows, .n = n, .y = y};
    pool_run(pool, pieces(rows, LIGHT_EACH), norm_item, &l);
}

static void add_item(void *shared, int item, int thread) {
    (void)thread;
    const Light *l = shared;
    const int first = item * LIGHT_EACH, end = smaller(l->rows, first + LIGHT_EACH);
    l->kernels->add_scaled(l->x + (size_t)first * l->n, 1.0f, (end - first) * l->n, l->y + (size_t)first * l->n);
}

void op_add(Pool *pool, const float *x, int rows, int n, float *y) {
    Light l = {.kernels = pool_kernels(pool), .x = x, .rows = rows, .n = n, .y = y};
    pool_run(pool, pieces(rows, LIGHT_EACH), add_item, &l);
}

static void add_gated_item(void *shared, int item, int thread) {
    (void)thread;
    const Light *l = shared;
    const int first = item * LIGHT_EACH, end = smaller(l->rows, first + LIGHT_EACH);
    if (l->gate) l->kernels->sigmoid(l->gate + first, end - first);
    for (int r = first; r < end; r++)
        l->kernels->add_scaled(l->x + (size_t)r * l->n, l->gate ? l->gate[r] : 1.0f, l->n, l->y + (size_t)r * l->n);
}

void op_add_gated(Pool *pool, const float *x, float *gate, int rows, int n, float *y) {
    Light l = {.kernels = pool_kernels(pool), .x = x, .gate = gate, .rows = rows, .n = n, .y = y};
    pool_run(pool, pieces(rows, LIGHT_EACH), add_gated_item, &l);
}

static void swiglu_item(void *shared, int item, int thread) {
    (void)thread;
    const Light *l = shared;
    const int end = smaller(l->rows, (item + 1) * LIGHT_EACH);
    for (int r = item * LIGHT_EACH; r < end; r++)
        l->kernels->swiglu(l->x + (size_t)r * 2 * l->n, l->n, l->y + (size_t)r * l->n);
}

void op_swiglu(Pool *pool, const float *hidden, int rows, int inner, float *out) {
    Light l = {.kernels = pool_kernels(pool), .x = hidden, .rows = rows, .n = inner, .y = out};
    pool_run(pool, pieces(rows, LIGHT_EACH), swiglu_item, &l);
}

typedef struct {
    const Kernels *kernels;
    const RouteShape *shape;
    float *logits;
    int rows;
    const int16_t *forced;
    ptrdiff_t forced_stride;
    float floor;
    int32_t *chosen;
    float *gates, *work;
    int64_t *counts; /* [items][2] */
} Route;

static void route_item(void *shared, int item, int thread) {
    Route *t = shared;
    const RouteShape *shape = t->shape;
    float *work = t->work + (size_t)thread * (2 * shape->experts + shape->top_k + LANES);
    const int end = smaller(t->rows, (item + 1) * LIGHT_EACH);
    for (int r = item * LIGHT_EACH; r < end; r++) {
        const int16_t *forced = t->forced ? t->forced + r * t->forced_stride : NULL;
        route_row(t->kernels, shape, t->logits + (size_t)r * shape->experts, forced, t->floor,
                  t->chosen + (size_t)r * shape->top_k, t->gates + (size_t)r * shape->top_k, work, t->counts + 2 * item);
    }
}

int op_route(Pool *pool, const RouteShape *shape, float *logits, int rows, const int16_t *forced,
             ptrdiff_t forced_stride, float floor, int32_t *chosen, float *gates, int64_t counts[2]) {
    const int items = pieces(rows, LIGHT_EACH);
    const size_t each = (size_t)(2 * shape->experts + shape->top_k + LANES);
    float *work = pool_take(pool, each * (size_t)pool_threads(pool) * sizeof *work);
    int64_t *counted = pool_take(pool, (size_t)items * 2 * sizeof *counted);
    if (!work || !counted) return 0;
    memset(counted, 0, (size_t)items * 2 * sizeof *counted);
    Route t = {pool_kernels(pool), shape, logits, rows, forced, forced_stride, floor, chosen, gates, work, counted};
    pool_run(pool, items, route_item, &t);
    for (int i = 0; i < 2 * items; i++) counts[i % 2] += counted[i];
    return 1;
}

/* Pairs (row, choice) sorted by expert: pairs [start[e], start[e + 1]) belong to expert e. */
typedef struct {
    const Kernels *kernels;
    const ExpertShape *shape;
    int rows;
    int32_t *start, *row, *place; /* place[pair in row order] = where it is in the sorted order */
    int32_t *item_expert, *item_row;
    const float *x, *gates;
    float *hidden, *inner, *out, *y;
    int columns;
} Experts;

static void sort_pairs(Experts *e, const int32_t *chosen) {
    const int experts = e->shape->experts, pairs = e->rows * e->shape->top_k;
    memset(e->start, 0, (size_t)(experts + 2) * sizeof *e->start);
    for (int p = 0; p < pairs; p++) e->start[chosen[p] + 2]++;
    for (int i = 0; i < experts; i++) e->start[i + 2] += e->start[i + 1];
    for (int p = 0; p < pairs; p++) {
        const int at = e->start[chosen[p] + 1]++;
        e->row[at] = p / e->shape->top_k;
        e->place[p] = at;
    }
}

/* Pieces of ROWS_EACH rows of every expert that has rows. */
static int split_experts(Experts *e) {
    int count = 0;
    for (int i = 0; i < e->shape->experts; i++)
        for (int row = e->start[i]; row < e->start[i + 1]; row += ROWS_EACH, count++) {
            e->item_expert[count] = i;
            e->item_row[count] = row;
        }
    return count;
}

static void gate_up_item(void *shared, int item, int thread) {
    (void)thread;
    const Experts *e = shared;
    const int piece = item / e->columns, expert = e->item_expert[piece], first = e->item_row[piece];
    const RowView x = {e->x, e->row + first, e->shape->width, e->start[expert + 1] - first};
    const ptrdiff_t stride = 2 * e->shape->inner;
    product_piece(e->kernels, e->shape->gate_up + expert, &x, e->hidden + first * stride, stride, NULL,
                  item % e->columns * PANELS_EACH, 0);
}

static void down_item(void *shared, int item, int thread) {
    (void)thread;
    const Experts *e = shared;
    const int piece = item / e->columns, expert = e->item_expert[piece], first = e->item_row[piece];
    const ptrdiff_t inner = e->shape->inner, width = e->shape->width;
    const RowView x = {e->inner + first * inner, NULL, inner, e->start[expert + 1] - first};
    product_piece(e->kernels, e->shape->down + expert, &x, e->out + first * width, width, NULL,
                  item % e->columns * PANELS_EACH, 0);
}

/* Choices are added in order of rank. */
static void combine_item(void *shared, int item, int thread) {
    (void)thread;
    const Experts *e = shared;
    const int k = e->shape->top_k, width = e->shape->width, end = smaller(e->rows, (item + 1) * LIGHT_EACH);
    for (int r = item * LIGHT_EACH; r < end; r++) {
        float *y = e->y + (size_t)r * width;
        memset(y, 0, (size_t)width * sizeof *y);
        for (int j = 0; j < k; j++) {
            const int pair = r * k + j;
            e->kernels->add_scaled(e->out + (size_t)e->place[pair] * width, e->gates[pair], width, y);
        }
    }
}

int op_experts(Pool *pool, const ExpertShape *shape, const float *x, int rows, const int32_t *chosen,
               const float *gates, float *y, float *hidden, float *activated) {
    const size_t pairs = (size_t)rows * shape->top_k, inner = (size_t)shape->inner;
    const size_t most = pairs / ROWS_EACH + (size_t)shape->experts + 1;
    Experts e = {.kernels = pool_kernels(pool), .shape = shape, .rows = rows, .x = x, .gates = gates, .y = y};
    e.start = pool_take(pool, (size_t)(shape->experts + 2) * sizeof *e.start);
    e.row = pool_take(pool, pairs * sizeof *e.row);
    e.place = pool_take(pool, pairs * sizeof *e.place);
    e.item_expert = pool_take(pool, most * sizeof *e.item_expert);
    e.item_row = pool_take(pool, most * sizeof *e.item_row);
    e.hidden = hidden ? hidden : pool_take(pool, pairs * 2 * inner * sizeof *e.hidden);
    e.inner = activated ? activated : pool_take(pool, pairs * inner * sizeof *e.inner);
    e.out = pool_take(pool, pairs * (size_t)shape->width * sizeof *e.out);
    if (!e.start || !e.row || !e.place || !e.item_expert || !e.item_row || !e.hidden || !e.inner || !e.out) return 0;
    sort_pairs(&e, chosen);
    const int split = split_experts(&e);
    e.columns = pieces(panels_of(2 * shape->inner), PANELS_EACH);
    pool_run(pool, split * e.columns, gate_up_item, &e);
    op_swiglu(pool, e.hidden, (int)pairs, shape->inner, e.inner);
    e.columns = pieces(panels_of(shape->width), PANELS_EACH);
    pool_run(pool, split * e.columns, down_item, &e);
    pool_run(pool, pieces(rows, LIGHT_EACH), combine_item, &e);
    return 1;
}
