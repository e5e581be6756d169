/* A pool of threads for regions of independent items.
 *
 * A region is published as one 64-bit ticket: a generation and the number of items that nobody has taken. Taking an item
 * is a compare-and-swap, so a thread that wakes late finds nothing and disturbs nobody; the caller takes items too and
 * returns when all are done. Which thread computes an item changes no result.
 * Helpers look for the next region for some microseconds, then sleep: an idle pool costs no CPU.
 */
#include "core.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define LOOKS 4000 /* for a next region, before a helper sleeps */
#define ALIGN 64

typedef struct Chunk {
    struct Chunk *before;
    size_t size, used;
    size_t padding[5];
} Chunk;

struct Pool {
    int threads;
    const Kernels *kernels;
    pthread_t *helpers;
    pthread_mutex_t caller, lock;
    pthread_cond_t wake;
    _Atomic uint64_t ticket;
    _Atomic int done, sleepers;
    _Atomic int closing;
    Task task;
    void *shared;
    Chunk *chunk;
    float **scratch;
    size_t scratch_floats;
};

typedef struct {
    Pool *pool;
    int thread;
} Helper;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Takes one item of the region that is open; -1 = there is none. */
static int take(Pool *pool) {
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while ((uint32_t)ticket) {
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return (int)((uint32_t)ticket - 1);
    }
    return -1;
}

static void work(Pool *pool, int thread) {
    for (int item; (item = take(pool)) >= 0;) {
        /* the caller cannot leave the region while an item is taken and not done */
        pool->task(pool->shared, item, thread);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
    }
}

static int idle(Pool *pool) {
    return !(uint32_t)atomic_load(&pool->ticket) && !atomic_load(&pool->closing);
}

static void *helper(void *argument) {
    Helper me = *(Helper *)argument;
    free(argument);
    Pool *pool = me.pool;
    while (!atomic_load(&pool->closing)) {
        work(pool, me.thread);
        int looks = 0;
        while (idle(pool) && looks++ < LOOKS) relax();
        if (!idle(pool)) continue;
        pthread_mutex_lock(&pool->lock);
        atomic_fetch_add(&pool->sleepers, 1);
        while (idle(pool)) pthread_cond_wait(&pool->wake, &pool->lock);
        atomic_fetch_sub(&pool->sleepers, 1);
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

static void wake_all(Pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(Pool *pool, int items, Task task, void *shared) {
    if (pool->threads == 1 || items <= 1) {
        for (int item = 0; item < items; item++) task(shared, item, 0);
        return;
    }
    pool->task = task;
    pool->shared = shared;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    uint64_t generation = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&pool->ticket, generation << 32 | (uint32_t)items);
    if (atomic_load(&pool->sleepers)) wake_all(pool);
    work(pool, 0);
    for (int looks = 0; atomic_load_explicit(&pool->done, memory_order_acquire) != items; looks++) {
        relax();
        if (looks >= LOOKS) sched_yield(); /* a helper was taken off its core */
    }
}

Pool *pool_new(int threads, const Kernels *kernels) {
    Pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->threads = 1;
    pool->kernels = kernels;
    pthread_mutex_init(&pool->caller, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->helpers = calloc((size_t)threads, sizeof *pool->helpers);
    pool->scratch = calloc((size_t)threads, sizeof *pool->scratch);
    if (!pool->helpers || !pool->scratch) goto failed;
    for (int thread = 1; thread < threads; thread++) {
        Helper *me = malloc(sizeof *me);
        if (!me) goto failed;
        *me = (Helper){pool, thread};
        if (pthread_create(&pool->helpers[thread], NULL, helper, me)) {
            free(me);
            goto failed;
        }
        pool->threads = thread + 1;
    }
    return pool;
failed:
    pool_free(pool);
    return NULL;
}

void pool_free(Pool *pool) {
    atomic_store(&pool->closing, 1);
    wake_all(pool);
    for (int thread = 1; thread < pool->threads; thread++) pthread_join(pool->helpers[thread], NULL);
    for (int thread = 0; pool->scratch && thread < pool->threads; thread++) free(pool->scratch[thread]);
    while (pool->chunk) {
        Chunk *before = pool->chunk->before;
        free(pool->chunk);
        pool->chunk = before;
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->caller);
    free(pool->helpers);
    free(pool->scratch);
    free(pool);
}

int pool_threads(const Pool *pool) { return pool->threads; }
const Kernels *pool_kernels(const Pool *pool) { return pool->kernels; }
void pool_enter(Pool *pool) { pthread_mutex_lock(&pool->caller); }

void pool_leave(Pool *pool) {
    /* keep the largest chunk only: the next call fits into it */
    while (pool->chunk && pool->chunk->before) {
        Chunk *before = pool->chunk->before;
        pool->chunk->before = before->before;
        free(before);
    }
    if (pool->chunk) pool->chunk->used = 0;
    pthread_mutex_unlock(&pool->caller);
}

void *pool_take(Pool *pool, size_t bytes) {
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    Chunk *chunk = pool->chunk;
    if (!chunk || chunk->size - chunk->used < bytes) {
        size_t size = chunk ? 2 * chunk->size : (size_t)1 << 20;
        while (size < bytes) size *= 2;
        chunk = aligned_alloc(ALIGN, sizeof *chunk + size);
        if (!chunk) return NULL;
        *chunk = (Chunk){.before = pool->chunk, .size = size};
        pool->chunk = chunk;
    }
    void *memory = (char *)(chunk + 1) + chunk->used;
    chunk->used += bytes;
    return memory;
}

Mark pool_mark(const Pool *pool) { return (Mark){pool->chunk, pool->chunk ? pool->chunk->used : 0}; }

void pool_release(Pool *pool, Mark mark) {
    /* else the memory grew in between: it is left as it is this time, and the next call has room in one chunk */
    if (pool->chunk == mark.chunk && pool->chunk) pool->chunk->used = mark.used;
}

int pool_reserve(Pool *pool, size_t floats) {
    if (floats <= pool->scratch_floats) return 1;
    floats = (floats + 255) / 256 * 256;
    for (int thread = 0; thread < pool->threads; thread++) {
        float *larger = aligned_alloc(ALIGN, floats * sizeof(float));
        if (!larger) return 0; /* scratch_floats stays what all of them have */
        free(pool->scratch[thread]);
        pool->scratch[thread] = larger;
    }
    pool->scratch_floats = floats;
    return 1;
}

float *pool_scratch(Pool *pool, int thread) { return pool->scratch[thread]; }
