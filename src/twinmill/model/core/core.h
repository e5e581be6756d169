/* The native core: what its files share.
 *
 * kernels_*.c   one instruction-set level each: products, norms, softmax, attention of one tile   (lanes_*.h, kernels.inc)
 * pool.c        threads
 * pack.c        matrices in the layout that the products stream
 * operators.c   one operator over many rows each, split over the pool
 * route.c       which experts a row uses, replay
 * head.c        log-probabilities of given tokens, and sampling, without a tensor of all logits
 * forward.c     a decoder's forward over a table of rows, made of the operators
 * _core.c, python_*.c   the Python module
 *
 * The one law: what is computed for a row never depends on the other rows, on how they are split over threads, or on
 * the shape of the tile it falls into. Every output element is a chain of fused multiply-adds in the order of the summed
 * index, cut into blocks of SUM_BLOCK terms whose sums are added in order; sums over lanes run in one fixed tree.
 */
#ifndef TWINMILL_CORE_H
#define TWINMILL_CORE_H

#include <stddef.h>
#include <stdint.h>

#define LANES 16      /* columns of a panel; every level computes with vectors of 16 floats */
#define SUM_BLOCK 256 /* terms per partial sum of a product; 256 rows of a panel fit the first cache */
#define KV_BLOCK 64   /* positions per block of keys and values, and terms per partial sum over them */
#define HEAD_BLOCK 64 /* token ids per block of the head */

enum { F32 = 0, BF16 = 1 };

/* A packed matrix [rows, cols] of weights: panels of 16 rows, [panel][col][lane]; lanes beyond `rows` hold zero. */
typedef struct {
    const void *data;
    int rows, cols, kind;
} Panels;

static inline size_t kind_bytes(int kind) { return kind == BF16 ? 2 : 4; }
static inline int panels_of(int rows) { return (rows + LANES - 1) / LANES; }
static inline size_t packed_bytes(int rows, int cols, int kind) {
    return (size_t)panels_of(rows) * LANES * (size_t)cols * kind_bytes(kind);
}

/* Keys and values of one layer, in blocks of KV_BLOCK positions; strides count floats.
 * A block of keys is [KV_BLOCK / 16][dim][16 positions], a block of values [KV_BLOCK][dim]. */
typedef struct {
    float *keys, *values;
    ptrdiff_t block_stride, head_stride;
    int dim; /* head_dim rounded up to 16 */
} KvLayer;

/* Attention of `rows` query rows of one sequence that share a key head: row r sees positions [0, seen[r]). */
typedef struct {
    const float *const *q;
    float *const *out;
    const int *seen;
    int rows, head_dim;
    float scale;
    const int32_t *table; /* block of each KV_BLOCK positions */
    const float *keys, *values;
    ptrdiff_t block_stride;
    int dim;
    float *scratch; /* [rows][longest, rounded up to KV_BLOCK] */
} AttendTile;

typedef struct {
    const char *name;
    /* y[r][n] for n in rows [16 * first, min(16 * last, w->rows)) of w: dot(x[r], w[n]) */
    void (*product)(const Panels *w, int first, int last, const float *const *x, int rows, float *const *y);
    void (*rms_norm)(const float *x, const float *weight, float eps, int n, float *y);
    /* in place: norm of one head (where weight is given), then rotation; table: cosines, and sines signed by half */
    void (*norm_rotate)(float *x, const float *weight, const float *cosine, const float *sine, float eps, int n);
    void (*swiglu)(const float *hidden, int inner, float *out);
    void (*softmax)(float *x, int n);
    void (*sigmoid)(float *x, int n);
    /* y += x * scale */
    void (*add_scaled)(const float *x, float scale, int n, float *y);
    /* logits /= temperature, in place; their maximum and the sum of exp(logit - maximum) */
    void (*tally)(float *logits, int n, float temperature, float *maximum, float *sum);
    /* x -> exp(x), in place */
    void (*exponential)(float *x, int n);
    void (*attend)(const AttendTile *tile);
} Kernels;

extern const Kernels kernels_portable;
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
extern const Kernels kernels_avx2, kernels_avx512;
#endif

/* pool.c */
typedef struct Pool Pool;
typedef void (*Task)(void *shared, int item, int thread);
Pool *pool_new(int threads, const Kernels *kernels); /* NULL: out of memory or of threads */
void pool_free(Pool *pool);
int pool_threads(const Pool *pool);
const Kernels *pool_kernels(const Pool *pool);
/* One caller at a time: everything between these two belongs to it, scratch included. */
void pool_enter(Pool *pool);
void pool_leave(Pool *pool);
void pool_run(Pool *pool, int items, Task task, void *shared);
/* Memory that lives until pool_leave, aligned to 64 bytes; NULL when there is none. */
void *pool_take(Pool *pool, size_t bytes);
/* What was taken since the mark may be overwritten from now on. */
typedef struct {
    void *chunk;
    size_t used;
} Mark;
Mark pool_mark(const Pool *pool);
void pool_release(Pool *pool, Mark mark);
/* At least so many floats of one thread, content undefined; sized for all threads by pool_reserve. 0 = no memory */
int pool_reserve(Pool *pool, size_t floats);
float *pool_scratch(Pool *pool, int thread);

/* pack.c: stored bits [count, cols], row-major, into rows [first, first + count) and back */
void pack_rows(void *packed, int cols, int kind, const void *bits, int first, int count);
void unpack_rows(const void *packed, int cols, int kind, void *bits, int first, int count);
void packed_row(const Panels *w, int row, float *out);

/* operators.c. Rows are contiguous [rows, n] unless a stride is given; `index` (may be NULL) picks rows of x.
 * Functions that need memory return 0 when there is none. */
typedef struct {
    const float *x;
    const int32_t *index;
    ptrdiff_t stride;
    int rows;
} RowView;

void op_product(Pool *pool, const Panels *w, RowView x, float *y, ptrdiff_t y_stride, const float *bias);
void op_rms_norm(Pool *pool, const float *x, const float *weight, float eps, int rows, int n, float *y);
void op_add(Pool *pool, const float *x, int rows, int n, float *y);
/* y += x * sigmoid(gate) by row, and `gate` becomes its sigmoid; NULL = y += x */
void op_add_gated(Pool *pool, const float *x, float *gate, int rows, int n, float *y);
void op_swiglu(Pool *pool, const float *hidden, int rows, int inner, float *out);

typedef struct {
    int heads, kv_heads, head_dim;
    float norm_eps;
    const float *q_norm, *k_norm; /* NULL = no norm */
    const float *rope;            /* [2, positions, head_dim]; NULL = normed and rotated already */
    ptrdiff_t rope_positions;
} HeadShape;

typedef struct {
    int rows;
    const int32_t *sequence, *position;
    const int32_t *table; /* [sequences, table_width] */
    int table_width;
} RowTable;

/* x [rows, heads, n] in place: each head normed by its weight [heads, n] (NULL = not), then rotated; tables [rows, n] */
void op_norm_rotate(Pool *pool, float *x, const float *weights, const float *cosine, const float *sine, float eps,
                    int rows, int heads, int n);
/* qkv [rows, (heads + 2 * kv_heads) * head_dim]: rotates queries and keys in place (not where rope is NULL), and stores
 * keys and values */
void op_rotate_store(Pool *pool, const HeadShape *shape, const RowTable *rows, float *qkv, const KvLayer *kv);
int op_attend(Pool *pool, const HeadShape *shape, const RowTable *rows, const float *qkv, const KvLayer *kv, float *out);

enum { GATE_SOFTMAX = 0, GATE_SIGMOID = 1 };
typedef struct {
    int experts, top_k, gating, norm_topk;
    int groups, top_groups;   /* DeepSeek's group-limited choice; groups 1 = off */
    float scaling;            /* of the gates */
    const float *choice_bias; /* added to the scores for the choice alone; NULL = none */
} RouteShape;

/* logits [rows, experts] become scores. forced [rows, forced_stride] (NULL = free choice, -1 = choose).
 * counts[0] += rows replayed whole, counts[1] += rows with a refusal. */
int op_route(Pool *pool, const RouteShape *shape, float *logits, int rows, const int16_t *forced,
             ptrdiff_t forced_stride, float floor, int32_t *chosen, float *gates, int64_t counts[2]);
void route_row(const Kernels *kernels, const RouteShape *shape, float *logits, const int16_t *forced, float floor,
               int32_t *chosen, float *gates, float *work, int64_t counts[2]);

/* y = sum over choices of gate * down(swiglu(gate_up x)). hidden [pairs, 2 * inner] and activated [pairs, inner] (NULL =
 * not wanted) receive what a backward needs, pairs (row, choice) sorted by expert and then in order. */
typedef struct {
    const Panels *gate_up, *down; /* [experts] */
    int experts, top_k, inner, width;
} ExpertShape;
int op_experts(Pool *pool, const ExpertShape *shape, const float *x, int rows, const int32_t *chosen,
               const float *gates, float *y, float *hidden, float *activated);

/* head.c */
typedef struct {
    int count;
    const int32_t *row;         /* of the hidden states */
    const int32_t *target;      /* -1 = sample a token */
    const int32_t *position;    /* index in its context of the token to be */
    const float *temperature;   /* 0 = the most likely token, scored at temperature 1 */
    const float *top_p;
    const uint64_t *seed;
    int32_t *token;
    float *logprob;
} Asks;
int op_head(Pool *pool, const Panels *head, const float *hidden, const Asks *asks);

/* forward.c */
typedef struct {
    Panels qkv, out, router, gate_up, down, shared_gate_up, shared_down, shared_gate;
    const Panels *expert_gate_up, *expert_down; /* [experts] in a mixture layer */
    const float *attn_norm, *mlp_norm, *q_norm, *k_norm, *qkv_bias, *out_bias, *choice_bias;
    int mixture;
} Layer;

typedef struct {
    int width, layers, heads, kv_heads, head_dim, vocab, experts, top_k, expert_inner, shared_inner, inner;
    int gating, norm_topk, groups, top_groups;
    float norm_eps, scaling;
    int mixtures; /* mixture layers */
    Panels embed, head;
    const float *norm;
    const Layer *layer;
} Decoder;

typedef struct {
    RowTable rows;
    const int32_t *token;
    const int16_t *route_in; /* [rows, mixtures, top_k]; NULL = free */
    int16_t *route_out;      /* the same; NULL = not wanted */
    float floor;
    float *keys, *values; /* of layer 0 */
    ptrdiff_t layer_stride, block_stride, head_stride;
    const float *rope;
    ptrdiff_t rope_positions;
    float *hidden; /* [rows, width], after the last norm; NULL = not wanted */
    Asks asks;     /* rows in rising order */
    int64_t counts[2];
} Forward;

int forward(Pool *pool, const Decoder *decoder, Forward *work);

#endif
