/* Decoder objects: an immutable set of packed weights, and the forward over a table of rows. */
#include "python.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    Decoder d;
    Layer *layers;
    Panels *experts; /* [layers][2][experts] */
    PyObject *kept;  /* keeps the matrices and vectors alive */
    Held *vectors;
    int vector_lists;
} DecoderObject;

int read_asks(Held *held, PyObject *tuple, int rows, int vocab, Asks *asks) {
    static const char *names[] = {"row", "target", "position", "temperature", "top_p", "seed", "token", "logprob"};
    static const int sizes[] = {4, 4, 4, 4, 4, 8, 4, 4};
    void *memory[8];
    if (tuple == Py_None) return 1;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 8) {
        PyErr_SetString(PyExc_ValueError, "asks are eight buffers: row, target, position, temperature, top_p, seed, token, logprob");
        return 0;
    }
    Py_ssize_t count = -1;
    for (int i = 0; i < 8; i++) {
        memory[i] = hold(held, PyTuple_GetItem(tuple, i), names[i], sizes[i], count, i < 6 ? READ : WRITE, 0);
        if (PyErr_Occurred()) return 0;
        if (!i) count = held_bytes(held) / 4;
    }
    *asks = (Asks){(int)count,  memory[0], memory[1], memory[2], memory[3], memory[4],
                   memory[5],   memory[6], memory[7]};
    for (int i = 0; i < asks->count; i++) {
        const int row = asks->row[i], before = i ? asks->row[i - 1] : 0;
        if (row < before || row >= rows || asks->target[i] >= vocab || !(asks->temperature[i] >= 0.0f)) {
            PyErr_Format(PyExc_ValueError, "ask %d: rows rise within 0..%d, targets lie below %d, no temperature is negative",
                         i, rows - 1, vocab);
            return 0;
        }
    }
    return 1;
}

int read_rows(Held *held, PyObject *sequence, PyObject *position, PyObject *table, int table_width, RowTable *rows) {
    rows->sequence = hold(held, sequence, "sequence", 4, -1, READ, 0);
    if (!rows->sequence) return 0;
    rows->rows = (int)(held_bytes(held) / 4);
    rows->position = hold(held, position, "position", 4, rows->rows, READ, 0);
    if (!rows->position) return 0;
    rows->table = hold(held, table, "table", 4, -1, READ, 0);
    rows->table_width = table_width;
    if (!rows->table) return 0;
    const Py_ssize_t sequences = table_width > 0 ? held_bytes(held) / 4 / table_width : 0;
    for (int r = 0; r < rows->rows; r++) {
        const int s = rows->sequence[r], p = rows->position[r];
        if (s < 0 || s >= sequences || p < 0 || p / KV_BLOCK >= table_width) {
            PyErr_Format(PyExc_ValueError, "row %d: sequence %d, position %d is not in the table of %zd x %d blocks", r, s,
                         p, sequences, table_width);
            return 0;
        }
    }
    return 1;
}

int read_kv(Held *held, PyObject *buffer, PyObject *strides, int layers, int kv_heads, int head_dim, const RowTable *rows,
            KvView *kv) {
    Py_ssize_t values, layer, block, head;
    if (!PyTuple_Check(strides) || !PyArg_ParseTuple(strides, "nnnn", &values, &layer, &block, &head)) return 0;
    float *memory = hold(held, buffer, "kv", 4, -1, WRITE, 0);
    if (!memory) return 0;
    const Py_ssize_t floats = held_bytes(held) / 4, each = (Py_ssize_t)KV_BLOCK * panels_of(head_dim) * LANES;
    if (values < 0 || layer < 0 || block < 0 || head < 0) {
        PyErr_SetString(PyExc_ValueError, "kv strides are negative");
        return 0;
    }
    for (int r = 0; r < rows->rows; r++) {
        const int32_t *table = rows->table + (Py_ssize_t)rows->sequence[r] * rows->table_width;
        for (int b = 0; b <= rows->position[r] / KV_BLOCK; b++) {
            const Py_ssize_t last = values + (layers - 1) * layer + table[b] * block + (kv_heads - 1) * head + each;
            if (table[b] < 0 || last > floats) {
                PyErr_Format(PyExc_ValueError, "row %d: block %d lies outside of kv", r, table[b]);
                return 0;
            }
        }
        /* neighbours of one sequence: the last of them has all the blocks */
        while (r + 1 < rows->rows && rows->sequence[r + 1] == rows->sequence[r] &&
               rows->position[r + 1] / KV_BLOCK <= rows->position[r] / KV_BLOCK)
            r++;
    }
    *kv = (KvView){memory, memory + values, layer, block, head};
    return 1;
}

/* One packed matrix of exactly this shape; an empty one for None. */
static Panels matrix_in(PyObject *tuple, int i, int rows, int cols) {
    PyObject *object = PyTuple_GetItem(tuple, i);
    if (!object || object == Py_None) return (Panels){0};
    if (!PyObject_TypeCheck(object, matrix_type)) {
        PyErr_Format(PyExc_TypeError, "item %d of a layer must be a Matrix or None", i);
        return (Panels){0};
    }
    const Matrix *m = (Matrix *)object;
    if (m->rows != rows || m->cols != cols) {
        PyErr_Format(PyExc_ValueError, "item %d is [%d, %d]; wanted is [%d, %d]", i, m->rows, m->cols, rows, cols);
        return (Panels){0};
    }
    return panels_at(m, 0);
}

static const float *vector_in(Held *held, PyObject *tuple, int i, int n) {
    PyObject *object = PyTuple_GetItem(tuple, i);
    return object && !PyErr_Occurred() ? hold(held, object, "a vector of a layer", 4, n, READ, 1) : NULL;
}

static int experts_in(PyObject *tuple, int i, int count, int rows, int cols, Panels *list) {
    const Panels first = matrix_in(tuple, i, rows, cols);
    if (PyErr_Occurred() || !first.data) return 0;
    const Matrix *m = (Matrix *)PyTuple_GetItem(tuple, i);
    if (m->count != count) {
        PyErr_Format(PyExc_ValueError, "item %d has %d experts, wanted are %d", i, m->count, count);
        return 0;
    }
    for (int e = 0; e < count; e++) list[e] = panels_at(m, e);
    return 1;
}

/* What every layer must have, and what a mixture or a dense layer must. */
static int complete(const Layer *l) {
    const int common = l->attn_norm && l->mlp_norm && l->qkv.data && l->out.data && !l->q_norm == !l->k_norm;
    const int shared = !l->shared_down.data == !l->shared_gate_up.data;
    return common && shared && (l->mixture ? l->router.data != NULL : l->gate_up.data && l->down.data);
}

/* A layer: (attn_norm, qkv, qkv_bias, q_norm, k_norm, out, out_bias, mlp_norm, gate_up, down, router, choice_bias,
 * expert_gate_up, expert_down, shared_gate_up, shared_down, shared_gate), None where it has none. */
static int read_layer(DecoderObject *self, PyObject *t, int index) {
    const Decoder *d = &self->d;
    Layer *l = self->layers + index;
    Held *held = self->vectors + index;
    if (!PyTuple_Check(t) || PyTuple_Size(t) != 17) {
        PyErr_SetString(PyExc_ValueError, "a layer is a tuple of 17");
        return 0;
    }
    const int heads = d->heads * d->head_dim, qkv = heads + 2 * d->kv_heads * d->head_dim;
    l->attn_norm = vector_in(held, t, 0, d->width);
    l->qkv = matrix_in(t, 1, qkv, d->width);
    l->qkv_bias = vector_in(held, t, 2, qkv);
    l->q_norm = vector_in(held, t, 3, d->head_dim);
    l->k_norm = vector_in(held, t, 4, d->head_dim);
    l->out = matrix_in(t, 5, d->width, heads);
    l->out_bias = vector_in(held, t, 6, d->width);
    l->mlp_norm = vector_in(held, t, 7, d->width);
    if (PyErr_Occurred()) return 0;
    l->mixture = PyTuple_GetItem(t, 10) != Py_None;
    if (l->mixture) {
        Panels *experts = self->experts + (size_t)index * 2 * d->experts;
        l->router = matrix_in(t, 10, d->experts, d->width);
        l->choice_bias = vector_in(held, t, 11, d->experts);
        if (!experts_in(t, 12, d->experts, 2 * d->expert_inner, d->width, experts) ||
            !experts_in(t, 13, d->experts, d->width, d->expert_inner, experts + d->experts))
            goto incomplete;
        l->expert_gate_up = experts;
        l->expert_down = experts + d->experts;
        l->shared_gate_up = matrix_in(t, 14, 2 * d->shared_inner, d->width);
        l->shared_down = matrix_in(t, 15, d->width, d->shared_inner);
        l->shared_gate = matrix_in(t, 16, 1, d->width);
    } else {
        l->gate_up = matrix_in(t, 8, 2 * d->inner, d->width);
        l->down = matrix_in(t, 9, d->width, d->inner);
    }
    if (PyErr_Occurred()) return 0;
    if (complete(l)) return 1;
incomplete:
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "layer %d lacks a tensor", index);
    return 0;
}

static int sensible(const Decoder *d) {
    const int sizes = d->width > 0 && d->layers > 0 && d->heads > 0 && d->kv_heads > 0 && d->head_dim > 1 && d->vocab > 0;
    const int mixture = d->experts >= 0 && (!d->experts || (d->top_k > 0 && d->top_k <= d->experts));
    const int groups = d->groups > 0 && d->top_groups > 0 && d->top_groups <= d->groups && d->experts % d->groups == 0;
    return sizes && mixture && groups && d->heads % d->kv_heads == 0 && d->head_dim % 2 == 0 && d->experts <= 32767;
}

static int read_decoder(DecoderObject *self, PyObject *ends, PyObject *layers) {
    Decoder *d = &self->d;
    if (!sensible(d) || PyTuple_Size(layers) != d->layers || PyTuple_Size(ends) != 3) {
        PyErr_SetString(PyExc_ValueError, "these sizes are no decoder");
        return 0;
    }
    self->layers = calloc((size_t)d->layers, sizeof *self->layers);
    self->experts = calloc((size_t)d->layers * 2 * d->experts + 1, sizeof *self->experts);
    self->vectors = calloc((size_t)d->layers + 1, sizeof *self->vectors);
    if (!self->layers || !self->experts || !self->vectors) {
        PyErr_NoMemory();
        return 0;
    }
    self->vector_lists = d->layers + 1;
    d->layer = self->layers;
    d->embed = matrix_in(ends, 0, d->vocab, d->width);
    d->norm = vector_in(self->vectors + d->layers, ends, 1, d->width);
    d->head = matrix_in(ends, 2, d->vocab, d->width);
    if (PyErr_Occurred()) return 0;
    if (!d->embed.data || !d->norm || !d->head.data) {
        PyErr_SetString(PyExc_ValueError, "the decoder lacks its embedding, last norm or head");
        return 0;
    }
    for (int i = 0; i < d->layers; i++) {
        if (!read_layer(self, PyTuple_GetItem(layers, i), i)) return 0;
        d->mixtures += self->layers[i].mixture;
    }
    return 1;
}

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    Decoder d = {0};
    PyObject *ends, *layers;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "(iiiiiiiiiiiiiiiff)O!O!", &d.width, &d.layers, &d.heads, &d.kv_heads, &d.head_dim, &d.vocab,
                          &d.experts, &d.top_k, &d.expert_inner, &d.shared_inner, &d.inner, &d.gating, &d.norm_topk,
                          &d.groups, &d.top_groups, &d.norm_eps, &d.scaling, &PyTuple_Type, &ends, &PyTuple_Type, &layers))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    DecoderObject *self = (DecoderObject *)alloc(type, 0);
    if (!self) return NULL;
    self->d = d;
    self->kept = Py_NewRef(args);
    if (!read_decoder(self, ends, layers)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void decoder_free(PyObject *object) {
    DecoderObject *self = (DecoderObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    for (int i = 0; i < self->vector_lists; i++) let_go(self->vectors + i);
    free(self->layers);
    free(self->experts);
    free(self->vectors);
    Py_XDECREF(self->kept);
    release(object);
    Py_DECREF(type);
}

static int tokens_fit(const Forward *w, int vocab) {
    for (int r = 0; r < w->rows.rows; r++) {
        if (w->token[r] < 0 || w->token[r] >= vocab) {
            PyErr_Format(PyExc_ValueError, "row %d: token id %d is not in 0..%d", r, w->token[r], vocab - 1);
            return 0;
        }
        if (w->rows.position[r] >= w->rope_positions) {
            PyErr_Format(PyExc_ValueError, "row %d: position %d is beyond the rotary table", r, w->rows.position[r]);
            return 0;
        }
    }
    return 1;
}

static PyObject *decoder_forward(PyObject *object, PyObject *args) {
    const Decoder *d = &((DecoderObject *)object)->d;
    PoolObject *pool;
    PyObject *token, *sequence, *position, *table, *kv, *strides, *rope, *in, *out, *hidden, *asks;
    Forward w = {0};
    int width, ok = 0;
    if (!PyArg_ParseTuple(args, "O!OOOOiOOOOOfOO", pool_type, &pool, &token, &sequence, &position, &table, &width, &kv,
                          &strides, &rope, &in, &out, &w.floor, &hidden, &asks))
        return NULL;
    Held held = {.count = 0};
    KvView view;
    if (!read_rows(&held, sequence, position, table, width, &w.rows) ||
        !read_kv(&held, kv, strides, d->layers, d->kv_heads, d->head_dim, &w.rows, &view))
        goto end;
    const Py_ssize_t rows = w.rows.rows, routes = rows * d->mixtures * d->top_k;
    w.keys = view.keys;
    w.values = view.values;
    w.layer_stride = view.layer_stride;
    w.block_stride = view.block_stride;
    w.head_stride = view.head_stride;
    if (!(w.rope = hold(&held, rope, "rope", 4, -1, READ, 0))) goto end;
    w.rope_positions = held_bytes(&held) / 4 / 2 / d->head_dim;
    if (!(w.token = hold(&held, token, "token", 4, rows, READ, 0)) || !tokens_fit(&w, d->vocab)) goto end;
    w.route_in = hold(&held, in, "route_in", 2, routes, READ, 1);
    w.route_out = PyErr_Occurred() ? NULL : hold(&held, out, "route_out", 2, routes, WRITE, 1);
    w.hidden = PyErr_Occurred() ? NULL : hold(&held, hidden, "hidden", 4, rows * d->width, WRITE, 1);
    if (PyErr_Occurred() || !read_asks(&held, asks, (int)rows, d->vocab, &w.asks)) goto end;
    Py_BEGIN_ALLOW_THREADS
    pool_enter(pool->pool);
    ok = forward(pool->pool, d, &w);
    pool_leave(pool->pool);
    Py_END_ALLOW_THREADS
    if (!ok) PyErr_NoMemory();
end:
    let_go(&held);
    return ok ? Py_BuildValue("(LL)", (long long)w.counts[0], (long long)w.counts[1]) : NULL;
}

static PyMethodDef decoder_methods[] = {
    {"forward", decoder_forward, METH_VARARGS,
     "forward(pool, token, sequence, position, table, table_width, kv, (values, layer, block, head), rope, route_in, "
     "route_out, floor, hidden, asks) -> (replayed, refused)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_new, (void *)decoder_new},
    {Py_tp_dealloc, (void *)decoder_free},
    {Py_tp_methods, decoder_methods},
    {Py_tp_doc, "Decoder(sizes, (embed, norm, head), layers): packed weights, immutable from now on"},
    {0, NULL},
};
PyType_Spec decoder_spec = {"twinmill.model.core._core.Decoder", sizeof(DecoderObject), 0, Py_TPFLAGS_DEFAULT, decoder_slots};
