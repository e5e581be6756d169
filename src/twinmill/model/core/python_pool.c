/* Pool objects: threads, and single operators on memory of the caller. The trainer's forward is made of these, so it and
 * the engine run the very same code. */
#include "python.h"

#include <stdlib.h>
#include <string.h>

#define RUN(pool_, ...)              \
    do {                             \
        Py_BEGIN_ALLOW_THREADS       \
        pool_enter(pool_);           \
        __VA_ARGS__;                 \
        pool_leave(pool_);           \
        Py_END_ALLOW_THREADS         \
    } while (0)

static PyObject *done(Held *held, int ok) {
    let_go(held);
    if (PyErr_Occurred()) return NULL;
    return ok ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

static PyObject *pool_object_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"threads", "level", NULL};
    int threads = 1;
    const char *level = "";
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|is", names, &threads, &level)) return NULL;
    if (threads < 1 || threads > 1024) return PyErr_Format(PyExc_ValueError, "threads = %d: must lie in 1..1024", threads);
    const Kernels *kernels = level_named(level);
    if (!kernels) return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PoolObject *self = (PoolObject *)alloc(type, 0);
    if (!self) return NULL;
    self->pool = pool_new(threads, kernels);
    if (!self->pool) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_OSError, "%d threads could not be started", threads);
    }
    return (PyObject *)self;
}

static void pool_object_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Pool *pool = ((PoolObject *)self)->pool;
    if (pool) {
        Py_BEGIN_ALLOW_THREADS
        pool_free(pool);
        Py_END_ALLOW_THREADS
    }
    release(self);
    Py_DECREF(type);
}

static PyObject *pool_product(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    Matrix *m;
    PyObject *x_, *y_, *bias_ = Py_None;
    int index = 0;
    if (!PyArg_ParseTuple(args, "O!OO|Oi", matrix_type, &m, &x_, &y_, &bias_, &index)) return NULL;
    Held held = {.count = 0};
    const float *x = hold(&held, x_, "x", 4, -1, READ, 0);
    if (!x) return done(&held, 0);
    const Py_ssize_t items = held_bytes(&held) / 4, rows = items / m->cols;
    if (items % m->cols || index < 0 || index >= m->count) {
        PyErr_Format(PyExc_ValueError, "x holds %zd numbers, no rows of %d; or no matrix %d", items, m->cols, index);
        return done(&held, 0);
    }
    float *y = hold(&held, y_, "y", 4, rows * m->rows, WRITE, 0);
    const float *bias = y ? hold(&held, bias_, "bias", 4, m->rows, READ, 1) : NULL;
    if (PyErr_Occurred()) return done(&held, 0);
    const Panels w = panels_at(m, index);
    RUN(pool, op_product(pool, &w, (RowView){x, NULL, m->cols, (int)rows}, y, m->rows, bias));
    return done(&held, 1);
}

static PyObject *pool_rms_norm(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    PyObject *x_, *weight_, *y_;
    float eps;
    if (!PyArg_ParseTuple(args, "OOfO", &x_, &weight_, &eps, &y_)) return NULL;
    Held held = {.count = 0};
    const float *weight = hold(&held, weight_, "weight", 4, -1, READ, 0);
    const Py_ssize_t n = weight ? held_bytes(&held) / 4 : 0;
    const float *x = n ? hold(&held, x_, "x", 4, -1, READ, 0) : NULL;
    const Py_ssize_t items = x ? held_bytes(&held) / 4 : 0;
    float *y = x ? hold(&held, y_, "y", 4, items, WRITE, 0) : NULL;
    if (!y) return done(&held, 0);
    if (items % n) {
        PyErr_Format(PyExc_ValueError, "x holds %zd numbers, no rows of %zd", items, n);
        return done(&held, 0);
    }
    RUN(pool, op_rms_norm(pool, x, weight, eps, (int)(items / n), (int)n, y));
    return done(&held, 1);
}

static PyObject *pool_swiglu(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    PyObject *hidden_, *out_;
    int rows;
    if (!PyArg_ParseTuple(args, "OOi", &hidden_, &out_, &rows)) return NULL;
    Held held = {.count = 0};
    float *out = hold(&held, out_, "out", 4, -1, WRITE, 0);
    const Py_ssize_t items = out ? held_bytes(&held) / 4 : 0;
    const float *hidden = out ? hold(&held, hidden_, "hidden", 4, 2 * items, READ, 0) : NULL;
    if (hidden && (rows < 0 || (rows ? items % rows : items))) PyErr_Format(PyExc_ValueError, "out has no %d rows", rows);
    if (!hidden || PyErr_Occurred()) return done(&held, 0);
    RUN(pool, if (rows) op_swiglu(pool, hidden, rows, (int)(items / rows), out));
    return done(&held, 1);
}

static PyObject *pool_add_gated(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    PyObject *x_, *gate_, *y_;
    int rows;
    if (!PyArg_ParseTuple(args, "OOOi", &x_, &gate_, &y_, &rows)) return NULL;
    Held held = {.count = 0};
    float *y = hold(&held, y_, "y", 4, -1, WRITE, 0);
    const Py_ssize_t items = y ? held_bytes(&held) / 4 : 0;
    const float *x = y ? hold(&held, x_, "x", 4, items, READ, 0) : NULL;
    float *gate = x ? hold(&held, gate_, "gate", 4, rows, WRITE, 1) : NULL;
    if (x && (rows < 0 || (rows ? items % rows : items))) PyErr_Format(PyExc_ValueError, "y has no %d rows", rows);
    if (!x || PyErr_Occurred()) return done(&held, 0);
    RUN(pool, if (rows) op_add_gated(pool, x, gate, rows, (int)(items / rows), y));
    return done(&held, 1);
}

static PyObject *pool_norm_rotate(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    PyObject *x_, *weights_, *cosine_, *sine_;
    float eps;
    int heads, n;
    if (!PyArg_ParseTuple(args, "OOOOfii", &x_, &weights_, &cosine_, &sine_, &eps, &heads, &n)) return NULL;
    if (heads < 1 || n < 2 || n % 2) return PyErr_Format(PyExc_ValueError, "no %d heads of %d numbers", heads, n);
    Held held = {.count = 0};
    const Py_ssize_t each = (Py_ssize_t)heads * n;
    float *x = hold(&held, x_, "x", 4, -1, WRITE, 0);
    const Py_ssize_t rows = x ? held_bytes(&held) / 4 / each : 0;
    if (x && held_bytes(&held) / 4 % each) PyErr_SetString(PyExc_ValueError, "x has a broken row");
    const float *weights = PyErr_Occurred() ? NULL : hold(&held, weights_, "weights", 4, each, READ, 1);
    const float *cosine = PyErr_Occurred() ? NULL : hold(&held, cosine_, "cosine", 4, rows * n, READ, 0);
    const float *sine = cosine ? hold(&held, sine_, "sine", 4, rows * n, READ, 0) : NULL;
    if (!sine) return done(&held, 0);
    RUN(pool, op_norm_rotate(pool, x, weights, cosine, sine, eps, (int)rows, heads, n));
    return done(&held, 1);
}

/* shape: heads, kv_heads, head_dim */
static PyObject *pool_attention(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    HeadShape shape = {0};
    PyObject *qkv_, *q_norm_, *k_norm_, *rope_, *sequence_, *position_, *table_, *kv_, *strides_, *out_;
    int width;
    if (!PyArg_ParseTuple(args, "O(iii)fOOOOOOiOOO", &qkv_, &shape.heads, &shape.kv_heads, &shape.head_dim,
                          &shape.norm_eps, &q_norm_, &k_norm_, &rope_, &sequence_, &position_, &table_, &width, &kv_,
                          &strides_, &out_))
        return NULL;
    if (shape.kv_heads < 1 || shape.heads < 1 || shape.heads % shape.kv_heads || shape.head_dim < 2)
        return PyErr_Format(PyExc_ValueError, "no attention of %d heads over %d", shape.heads, shape.kv_heads);
    Held held = {.count = 0};
    RowTable rows;
    KvView view;
    if (!read_rows(&held, sequence_, position_, table_, width, &rows) ||
        !read_kv(&held, kv_, strides_, 1, shape.kv_heads, shape.head_dim, &rows, &view))
        return done(&held, 0);
    const Py_ssize_t dim = shape.head_dim, each = (shape.heads + 2 * shape.kv_heads) * dim;
    float *qkv = hold(&held, qkv_, "qkv", 4, rows.rows * each, WRITE, 0);
    shape.q_norm = qkv ? hold(&held, q_norm_, "q_norm", 4, dim, READ, 1) : NULL;
    shape.k_norm = PyErr_Occurred() ? NULL : hold(&held, k_norm_, "k_norm", 4, dim, READ, 1);
    float *out = PyErr_Occurred() ? NULL : hold(&held, out_, "out", 4, rows.rows * shape.heads * dim, WRITE, 1);
    shape.rope = PyErr_Occurred() ? NULL : hold(&held, rope_, "rope", 4, -1, READ, 1);
    if (PyErr_Occurred()) return done(&held, 0);
    if (shape.rope) shape.rope_positions = held_bytes(&held) / 4 / 2 / dim;
    for (int r = 0; shape.rope && r < rows.rows; r++)
        if (rows.position[r] >= shape.rope_positions) {
            PyErr_Format(PyExc_ValueError, "row %d: position %d is beyond the rotary table", r, rows.position[r]);
            return done(&held, 0);
        }
    const KvLayer kv = {view.keys, view.values, view.block_stride, view.head_stride, panels_of(shape.head_dim) * LANES};
    int ok = 1;
    RUN(pool, op_rotate_store(pool, &shape, &rows, qkv, &kv); if (out) ok = op_attend(pool, &shape, &rows, qkv, &kv, out));
    return done(&held, ok);
}

static PyObject *pool_route(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    RouteShape shape = {0};
    PyObject *logits_, *forced_, *bias_, *chosen_, *gates_;
    float floor;
    if (!PyArg_ParseTuple(args, "O(iiiiiif)OOfOO", &logits_, &shape.experts, &shape.top_k, &shape.gating,
                          &shape.norm_topk, &shape.groups, &shape.top_groups, &shape.scaling, &bias_, &forced_, &floor,
                          &chosen_, &gates_))
        return NULL;
    if (shape.top_k < 1 || shape.top_k > shape.experts || shape.groups < 1 || shape.experts % shape.groups ||
        shape.top_groups < 1 || shape.top_groups > shape.groups)
        return PyErr_Format(PyExc_ValueError, "no choice of %d of %d experts", shape.top_k, shape.experts);
    Held held = {.count = 0};
    float *logits = hold(&held, logits_, "logits", 4, -1, WRITE, 0);
    const Py_ssize_t rows = logits ? held_bytes(&held) / 4 / shape.experts : 0, pairs = rows * shape.top_k;
    if (logits && held_bytes(&held) / 4 % shape.experts) PyErr_SetString(PyExc_ValueError, "logits have a broken row");
    shape.choice_bias = PyErr_Occurred() ? NULL : hold(&held, bias_, "choice bias", 4, shape.experts, READ, 1);
    const int16_t *forced = PyErr_Occurred() ? NULL : hold(&held, forced_, "forced", 2, pairs, READ, 1);
    int32_t *chosen = PyErr_Occurred() ? NULL : hold(&held, chosen_, "chosen", 4, pairs, WRITE, 0);
    float *gates = chosen ? hold(&held, gates_, "gates", 4, pairs, WRITE, 0) : NULL;
    if (!gates) return done(&held, 0);
    int64_t counts[2] = {0, 0};
    int ok = 0;
    RUN(pool, ok = op_route(pool, &shape, logits, (int)rows, forced, shape.top_k, floor, chosen, gates, counts));
    let_go(&held);
    return ok ? Py_BuildValue("(LL)", (long long)counts[0], (long long)counts[1]) : PyErr_NoMemory();
}

static int fit(const Matrix *gate_up, const Matrix *down) {
    return gate_up->count == down->count && gate_up->rows == 2 * down->cols && gate_up->cols == down->rows;
}

static PyObject *pool_experts(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    Matrix *gate_up, *down;
    PyObject *x_, *chosen_, *gates_, *y_, *hidden_ = Py_None, *activated_ = Py_None;
    int top_k;
    if (!PyArg_ParseTuple(args, "O!O!OOOiO|OO", matrix_type, &gate_up, matrix_type, &down, &x_, &chosen_, &gates_, &top_k,
                          &y_, &hidden_, &activated_))
        return NULL;
    if (!fit(gate_up, down) || top_k < 1) return PyErr_Format(PyExc_ValueError, "these matrices are no experts");
    Held held = {.count = 0};
    const int experts = gate_up->count;
    const float *x = hold(&held, x_, "x", 4, -1, READ, 0);
    const Py_ssize_t rows = x ? held_bytes(&held) / 4 / gate_up->cols : 0;
    const int32_t *chosen = x ? hold(&held, chosen_, "chosen", 4, rows * top_k, READ, 0) : NULL;
    const float *gates = chosen ? hold(&held, gates_, "gates", 4, rows * top_k, READ, 0) : NULL;
    float *y = gates ? hold(&held, y_, "y", 4, rows * gate_up->cols, WRITE, 0) : NULL;
    const Py_ssize_t pairs = rows * top_k;
    float *hidden = y ? hold(&held, hidden_, "hidden", 4, pairs * gate_up->rows, WRITE, 1) : NULL;
    float *activated = PyErr_Occurred() ? NULL : hold(&held, activated_, "activated", 4, pairs * down->cols, WRITE, 1);
    if (PyErr_Occurred()) return done(&held, 0);
    for (Py_ssize_t i = 0; i < pairs; i++)
        if (chosen[i] < 0 || chosen[i] >= experts) {
            PyErr_Format(PyExc_ValueError, "there is no expert %d", chosen[i]);
            return done(&held, 0);
        }
    Panels *list = malloc(2 * (size_t)experts * sizeof *list);
    if (!list) return done(&held, 0);
    for (int e = 0; e < experts; e++) {
        list[e] = panels_at(gate_up, e);
        list[experts + e] = panels_at(down, e);
    }
    const ExpertShape shape = {list, list + experts, experts, top_k, down->cols, down->rows};
    int ok = 0;
    RUN(pool, ok = op_experts(pool, &shape, x, (int)rows, chosen, gates, y, hidden, activated));
    free(list);
    return done(&held, ok);
}

static PyObject *pool_head(PyObject *self, PyObject *args) {
    Pool *pool = ((PoolObject *)self)->pool;
    Matrix *m;
    PyObject *hidden_, *asks_;
    if (!PyArg_ParseTuple(args, "O!OO", matrix_type, &m, &hidden_, &asks_)) return NULL;
    Held held = {.count = 0};
    Asks asks = {0};
    const float *hidden = hold(&held, hidden_, "hidden", 4, -1, READ, 0);
    if (!hidden || !read_asks(&held, asks_, (int)(held_bytes(&held) / 4 / m->cols), m->rows, &asks)) return done(&held, 0);
    const Panels head = panels_at(m, 0);
    int ok = 1;
    RUN(pool, if (asks.count) ok = op_head(pool, &head, hidden, &asks));
    return done(&held, ok);
}

static PyObject *pool_get_threads(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(pool_threads(((PoolObject *)self)->pool));
}

static PyObject *pool_get_level(PyObject *self, void *closure) {
    (void)closure;
    return PyUnicode_FromString(pool_kernels(((PoolObject *)self)->pool)->name);
}

static PyMethodDef pool_methods[] = {
    {"product", pool_product, METH_VARARGS, "product(matrix, x, y, bias=None, index=0): y = x @ matrix.T + bias"},
    {"rms_norm", pool_rms_norm, METH_VARARGS, "rms_norm(x, weight, eps, y)"},
    {"swiglu", pool_swiglu, METH_VARARGS, "swiglu(hidden, out, rows)"},
    {"add_gated", pool_add_gated, METH_VARARGS, "add_gated(x, gate or None, y, rows): y += x * sigmoid(gate)"},
    {"norm_rotate", pool_norm_rotate, METH_VARARGS, "norm_rotate(x, weights or None, cosine, sine, eps, heads, head_dim)"},
    {"attention", pool_attention, METH_VARARGS,
     "attention(qkv, (heads, kv_heads, head_dim), eps, q_norm, k_norm, rope, sequence, position, table, table_width, kv, "
     "(values, layer, block, head), out): norms and rotates qkv in place (not without rope), stores keys and values, and "
     "attends (not without out)"},
    {"route", pool_route, METH_VARARGS,
     "route(logits, (experts, top_k, gating, norm_topk, groups, top_groups, scaling), bias, forced, floor, chosen, gates) "
     "-> (replayed, refused); logits become scores"},
    {"experts", pool_experts, METH_VARARGS, "experts(gate_up, down, x, chosen, gates, top_k, y, hidden=None, activated=None)"},
    {"head", pool_head, METH_VARARGS, "head(matrix, hidden, asks): fills the asks' tokens and logprobs"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pool_properties[] = {
    {"threads", pool_get_threads, NULL, "how many compute", NULL},
    {"level", pool_get_level, NULL, "name of the instruction-set level", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_new, (void *)pool_object_new},
    {Py_tp_dealloc, (void *)pool_object_free},
    {Py_tp_methods, pool_methods},
    {Py_tp_getset, pool_properties},
    {Py_tp_doc, "Pool(threads=1, level=\"\"): threads that compute; level \"\" = the best of this processor"},
    {0, NULL},
};
PyType_Spec pool_spec = {"twinmill.model.core._core.Pool", sizeof(PoolObject), 0, Py_TPFLAGS_DEFAULT, pool_slots};
