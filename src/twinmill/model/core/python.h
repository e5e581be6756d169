/* What the files of the Python module share. Limited API 3.11: one build serves every later Python. */
#ifndef TWINMILL_PYTHON_H
#define TWINMILL_PYTHON_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"

typedef struct {
    PyObject_HEAD
    int rows, cols, kind, count;
    char *data;
    size_t bytes_each;
} Matrix;

typedef struct {
    PyObject_HEAD
    Pool *pool;
} PoolObject;

/* The buffers that one call holds. */
#define MOST_HELD 24
typedef struct {
    Py_buffer view[MOST_HELD];
    int count;
} Held;

enum { READ = 0, WRITE = 1 };

/* The memory of a contiguous buffer of exactly `count` items of `size` bytes (count < 0: any whole number of them).
 * NULL with an exception that names `what`, or NULL without one for None where `optional`. */
void *hold(Held *held, PyObject *object, const char *what, int size, Py_ssize_t count, int mode, int optional);
void let_go(Held *held);
static inline Py_ssize_t held_bytes(const Held *held) { return held->view[held->count - 1].len; }

const Kernels *level_named(const char *name);
extern PyTypeObject *matrix_type, *pool_type, *decoder_type;
extern PyType_Spec matrix_spec, pool_spec, decoder_spec;

static inline Panels panels_at(const Matrix *m, int index) {
    return (Panels){m->data + m->bytes_each * (size_t)index, m->rows, m->cols, m->kind};
}

/* The asks of one call: a tuple of eight buffers (see Asks), or None. 0 with an exception */
int read_asks(Held *held, PyObject *tuple, int rows, int vocab, Asks *asks);
/* Keys and values of one or more layers, and rows over them. 0 with an exception */
typedef struct {
    float *keys, *values;
    ptrdiff_t layer_stride, block_stride, head_stride;
} KvView;
int read_rows(Held *held, PyObject *sequence, PyObject *position, PyObject *table, int table_width, RowTable *rows);
int read_kv(Held *held, PyObject *buffer, PyObject *strides, int layers, int kv_heads, int head_dim, const RowTable *rows,
            KvView *kv);

#endif
