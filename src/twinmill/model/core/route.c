/* Which experts a row uses, and with what gates: softmax or sigmoid scores, top-k, replay of recorded choices.
 * The rules of replay are those of model/mixture.py. */
#include "core.h"

#include <math.h>
#include <string.h>

/* The k largest of x[0 .. n) in falling order; among equals the lower index first. x is spent. */
static void top(float *x, int n, int k, int32_t *best) {
    for (int j = 0; j < k; j++) {
        int at = 0;
        for (int i = 1; i < n; i++)
            if (x[i] > x[at]) at = i;
        best[j] = at;
        x[at] = -INFINITY;
    }
}

/* DeepSeek-V3: only the groups with the largest sums of their two best choices stay in the choice. */
static void keep_best_groups(const RouteShape *shape, float *choice) {
    const int size = shape->experts / shape->groups;
    float sums[shape->groups];
    int32_t kept[shape->top_groups];
    char keep[shape->groups];
    for (int g = 0; g < shape->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int i = 0; i < size; i++) {
            float x = choice[g * size + i];
            if (x > first) {
                second = first;
                first = x;
            } else if (x > second) {
                second = x;
            }
        }
        sums[g] = first + second;
    }
    top(sums, shape->groups, shape->top_groups, kept);
    memset(keep, 0, sizeof keep);
    for (int j = 0; j < shape->top_groups; j++) keep[kept[j]] = 1;
    for (int g = 0; g < shape->groups; g++)
        for (int i = 0; i < size && !keep[g]; i++) choice[g * size + i] = -INFINITY;
}

static int has(const int32_t *list, int n, int32_t value) {
    for (int i = 0; i < n; i++)
        if (list[i] == value) return 1;
    return 0;
}

/* In falling order of score, among equals the lower index first: what is recorded is a set, and the order of a sum is in its bits. */
static void order(const float *scores, int32_t *chosen, int k) {
    for (int j = 1; j < k; j++) {
        const int32_t expert = chosen[j];
        const float score = scores[expert];
        int i = j;
        for (; i > 0 && (score > scores[chosen[i - 1]] || (score == scores[chosen[i - 1]] && expert < chosen[i - 1])); i--)
            chosen[i] = chosen[i - 1];
        chosen[i] = expert;
    }
}

/* Recorded experts that are plausible stay; holes take the best of `own` that the row does not have yet. Plausible is
 * said of the scores, not of what choice_bias makes of them: that may be negative, and then `floor` means nothing. */
static void replay(const RouteShape *shape, const float *scores, const int16_t *forced, float floor,
                   const int32_t *own, int32_t *chosen, int64_t counts[2]) {
    const int k = shape->top_k;
    float lowest = scores[own[0]];
    for (int j = 1; j < k; j++)
        if (scores[own[j]] < lowest) lowest = scores[own[j]];
    const float limit = floor * lowest;
    int kept = 0, recorded = 0;
    for (int j = 0; j < k; j++) {
        const int inside = forced[j] >= 0 && forced[j] < shape->experts;
        const int keep = inside && scores[forced[j]] >= limit;
        recorded += forced[j] >= 0;
        kept += keep;
        chosen[j] = keep ? forced[j] : -1;
    }
    counts[0] += kept == k;
    counts[1] += kept < recorded;
    for (int j = 0, next = 0; j < k && kept < k; j++) {
        if (chosen[j] >= 0) continue;
        while (next < k - 1 && has(chosen, k, own[next])) next++; /* NaN scores may leave doubles */
        chosen[j] = own[next];
    }
}

/* work: 2 * experts floats, and room for top_k ids behind them */
void route_row(const Kernels *kernels, const RouteShape *shape, float *logits, const int16_t *forced, float floor,
               int32_t *chosen, float *gates, float *work, int64_t counts[2]) {
    const int n = shape->experts, k = shape->top_k;
    float *choice = work, *spent = work + n;
    int32_t *own = (int32_t *)(work + 2 * n);
    (shape->gating == GATE_SIGMOID ? kernels->sigmoid : kernels->softmax)(logits, n);
    for (int i = 0; i < n; i++) choice[i] = shape->choice_bias ? logits[i] + shape->choice_bias[i] : logits[i];
    memcpy(spent, choice, (size_t)n * sizeof *spent);
    if (shape->groups > 1) keep_best_groups(shape, spent);
    top(spent, n, k, own);
    if (forced)
        replay(shape, logits, forced, floor, own, chosen, counts);
    else
        memcpy(chosen, own, (size_t)k * sizeof *own);
    order(logits, chosen, k); /* by now logits are scores */
    float sum = 0.0f;
    for (int j = 0; j < k; j++) sum += gates[j] = logits[chosen[j]];
    if (shape->gating == GATE_SIGMOID) sum += 1e-20f;
    for (int j = 0; j < k; j++) gates[j] = (shape->norm_topk ? gates[j] / sum : gates[j]) * shape->scaling;
}
