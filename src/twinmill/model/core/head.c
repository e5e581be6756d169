/* Log-probabilities and samples from hidden states, a block of HEAD_BLOCK token ids at a time.
 *
 * Of each block only the maximum and the sum of exponentials stay. A sample inverts the cumulative distribution block by
 * block, then computes the logits of the one block it falls into again: to the same bits, because a product does not
 * depend on what else is computed. With top_p < 1 a row's logits are all needed at once, and are computed once more.
 *
 * The uniform number is splitmix64 of (seed, position), as in engine/embedded/sampler.py.
 */
#include "core.h"

#include <math.h>
#include <stdlib.h>

#define ROWS_EACH 48
#define NEVER (-INFINITY)

static inline int smaller(int a, int b) { return a < b ? a : b; }

typedef struct {
    float maximum, sum;
    int32_t best; /* the lowest id that has the maximum */
} Block;

typedef struct {
    float logit;
    int32_t id;
} Candidate;

typedef struct {
    Pool *pool;
    const Panels *head;
    const float *hidden;
    const Asks *asks;
    int blocks, groups;
    Block *block;          /* [asks][blocks] */
    float *wanted;         /* [asks]: logit of the target */
    Candidate *candidates; /* [threads][vocab], where some ask has a top_p */
} Head;

static float temperature_of(const Asks *asks, int i) { return asks->temperature[i] > 0 ? asks->temperature[i] : 1.0f; }

static int ids_in(const Head *h, int block) { return smaller(HEAD_BLOCK, h->head->rows - block * HEAD_BLOCK); }

/* Logits of asks [first, first + rows) for the ids of a block, into rows of HEAD_BLOCK floats. */
static void block_logits(const Head *h, int block, int first, int rows, float *logits) {
    const float *x[ROWS_EACH] = {0};
    float *y[ROWS_EACH] = {0};
    for (int r = 0; r < rows; r++) {
        x[r] = h->hidden + (size_t)h->asks->row[first + r] * h->head->cols;
        y[r] = logits + r * HEAD_BLOCK - block * HEAD_BLOCK;
    }
    const int panel = block * (HEAD_BLOCK / LANES), panels = panels_of(ids_in(h, block));
    pool_kernels(h->pool)->product(h->head, panel, panel + panels, x, rows, y);
}

static void tally_item(void *shared, int item, int thread) {
    const Head *h = shared;
    const int block = item / h->groups, first = item % h->groups * ROWS_EACH;
    const int rows = smaller(ROWS_EACH, h->asks->count - first), ids = ids_in(h, block);
    float *logits = pool_scratch(h->pool, thread);
    block_logits(h, block, first, rows, logits);
    for (int r = 0; r < rows; r++) {
        const int ask = first + r, target = h->asks->target[ask] - block * HEAD_BLOCK;
        float *row = logits + r * HEAD_BLOCK;
        Block *to = h->block + (size_t)ask * h->blocks + block;
        pool_kernels(h->pool)->tally(row, ids, temperature_of(h->asks, ask), &to->maximum, &to->sum);
        to->best = 0;
        while (to->best < ids - 1 && row[to->best] != to->maximum) to->best++;
        to->best += block * HEAD_BLOCK;
        if (target >= 0 && target < ids) h->wanted[ask] = row[target];
    }
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* In [0, 1), with 53 random bits. */
static double uniform(uint64_t seed, uint64_t position) {
    const uint64_t step = 0x9E3779B97F4A7C15u;
    return (double)(mix(mix(seed + step) + position * step) >> 11) * 0x1p-53;
}

static int likelier(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

static int by_id(const void *a, const void *b) { return ((const Candidate *)a)->id - ((const Candidate *)b)->id; }

/* The likeliest ids whose probabilities reach top_p, the last one included, renormalised. */
static void sample_top_p(const Head *h, int ask, double maximum, double total, double draw, Candidate *all) {
    const int vocab = h->head->rows;
    const float temperature = temperature_of(h->asks, ask);
    for (int block = 0; block < h->blocks; block++) {
        float logits[HEAD_BLOCK];
        block_logits(h, block, ask, 1, logits);
        for (int i = 0; i < ids_in(h, block); i++)
            all[block * HEAD_BLOCK + i] = (Candidate){logits[i] / temperature, block * HEAD_BLOCK + i};
    }
    qsort(all, (size_t)vocab, sizeof *all, likelier);
    int kept = 0;
    double inside = 0.0;
    while (kept < vocab && (!kept || inside < h->asks->top_p[ask] * total)) inside += exp(all[kept++].logit - maximum);
    qsort(all, (size_t)kept, sizeof *all, by_id);
    int at = 0;
    for (double sum = 0.0; at < kept - 1; at++)
        if ((sum += exp(all[at].logit - maximum)) > draw * inside) break;
    h->asks->token[ask] = all[at].id;
    h->asks->logprob[ask] = (float)(all[at].logit - maximum - log(inside));
}

/* The first id whose cumulative sum exceeds the draw. */
static void sample_any(const Head *h, int ask, double maximum, double total, double draw) {
    const Block *blocks = h->block + (size_t)ask * h->blocks;
    double before = 0.0, inside = 0.0;
    int block = 0, last = 0;
    for (; block < h->blocks; block++) {
        inside = blocks[block].sum * exp(blocks[block].maximum - maximum);
        if (inside > 0.0) last = block;
        if (before + inside > draw * total) break;
        before += inside;
    }
    if (block == h->blocks) { /* the draw lies within rounding of the total */
        block = last;
        before = -1.0;
    }
    float logits[HEAD_BLOCK], shares[HEAD_BLOCK], top, sum;
    const int ids = ids_in(h, block);
    block_logits(h, block, ask, 1, logits);
    pool_kernels(h->pool)->tally(logits, ids, temperature_of(h->asks, ask), &top, &sum);
    for (int i = 0; i < ids; i++) shares[i] = logits[i] - top;
    pool_kernels(h->pool)->exponential(shares, ids);
    const double weight = exp(top - maximum);
    int chosen = 0;
    double so_far = before < 0.0 ? -INFINITY : before;
    for (int i = 0; i < ids; i++) {
        if (shares[i] > 0.0f) chosen = i; /* rounding may leave the draw beyond the last: that one, then */
        so_far += shares[i] * weight;
        if (so_far > draw * total && shares[i] > 0.0f) break;
    }
    h->asks->token[ask] = block * HEAD_BLOCK + chosen;
    h->asks->logprob[ask] = (float)(logits[chosen] - maximum - log(total));
}

static void answer_item(void *shared, int ask, int thread) {
    const Head *h = shared;
    const Asks *asks = h->asks;
    const Block *blocks = h->block + (size_t)ask * h->blocks;
    float most = NEVER;
    double total = 0.0;
    int32_t best = 0;
    for (int b = 0; b < h->blocks; b++) {
        if (blocks[b].maximum > most) {
            most = blocks[b].maximum;
            best = blocks[b].best;
        }
    }
    for (int b = 0; b < h->blocks; b++) total += blocks[b].sum * exp((double)blocks[b].maximum - most);
    const double draw = uniform(asks->seed[ask], (uint64_t)asks->position[ask]);
    if (asks->target[ask] >= 0) {
        asks->token[ask] = asks->target[ask];
        asks->logprob[ask] = (float)(h->wanted[ask] - (double)most - log(total));
    } else if (!(total > 0.0) || asks->temperature[ask] == 0.0f) {
        asks->token[ask] = best; /* broken weights leave no total: NaN tells */
        asks->logprob[ask] = (float)-log(total);
    } else if (asks->top_p[ask] < 1.0f) {
        sample_top_p(h, ask, most, total, draw, h->candidates + (size_t)thread * h->head->rows);
    } else {
        sample_any(h, ask, most, total, draw);
    }
}

int op_head(Pool *pool, const Panels *head, const float *hidden, const Asks *asks) {
    Head h = {.pool = pool, .head = head, .hidden = hidden, .asks = asks};
    h.blocks = (head->rows + HEAD_BLOCK - 1) / HEAD_BLOCK;
    h.groups = (asks->count + ROWS_EACH - 1) / ROWS_EACH;
    h.block = pool_take(pool, (size_t)asks->count * h.blocks * sizeof *h.block);
    h.wanted = pool_take(pool, (size_t)asks->count * sizeof *h.wanted);
    int some_top_p = 0;
    for (int i = 0; i < asks->count; i++) some_top_p |= asks->top_p[i] < 1.0f;
    if (some_top_p) {
        h.candidates = pool_take(pool, (size_t)pool_threads(pool) * head->rows * sizeof *h.candidates);
        if (!h.candidates) return 0;
    }
    if (!h.block || !h.wanted || !pool_reserve(pool, ROWS_EACH * HEAD_BLOCK)) return 0;
    pool_run(pool, h.blocks * h.groups, tally_item, &h);
    pool_run(pool, asks->count, answer_item, &h);
    return 1;
}
