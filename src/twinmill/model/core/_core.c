/* The Python module: packed matrices here, pools and operators in python_pool.c, decoders in python_decoder.c.
 *
 * Everything goes through the buffer protocol, so that NumPy arrays and (through .numpy()) torch tensors are used where
 * they lie. Sizes and indices are checked before the GIL is released: a wrong call raises, it does not crash.
 */
#include "python.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *matrix_type, *pool_type, *decoder_type;

void *hold(Held *held, PyObject *object, const char *what, int size, Py_ssize_t count, int mode, int optional) {
    if (object == Py_None && optional) return NULL;
    if (held->count == MOST_HELD) {
        PyErr_SetString(PyExc_SystemError, "too many buffers in one call");
        return NULL;
    }
    Py_buffer *view = &held->view[held->count];
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (mode == WRITE ? PyBUF_WRITABLE : 0))) {
        PyErr_Format(PyExc_ValueError, "%s must be a contiguous %sbuffer", what, mode == WRITE ? "writable " : "");
        return NULL;
    }
    held->count++;
    const Py_ssize_t items = view->len / (view->itemsize ? view->itemsize : 1);
    if (view->itemsize != size || (count >= 0 && items != count)) {
        PyErr_Format(PyExc_ValueError, "%s holds %zd items of %zd bytes; wanted are %zd of %d", what, items,
                     view->itemsize, count, size);
        return NULL;
    }
    return view->buf;
}

void let_go(Held *held) {
    while (held->count) PyBuffer_Release(&held->view[--held->count]);
}

static PyObject *matrix_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"rows", "cols", "kind", "count", NULL};
    int rows, cols, kind, count = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iii|i", names, &rows, &cols, &kind, &count)) return NULL;
    if (rows < 1 || cols < 1 || count < 1 || (kind != F32 && kind != BF16))
        return PyErr_Format(PyExc_ValueError, "no matrix of %d x [%d, %d] and kind %d", count, rows, cols, kind);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Matrix *m = (Matrix *)alloc(type, 0);
    if (!m) return NULL;
    m->rows = rows;
    m->cols = cols;
    m->kind = kind;
    m->count = count;
    m->bytes_each = packed_bytes(rows, cols, kind);
    const size_t bytes = (m->bytes_each * (size_t)count + 63) / 64 * 64;
    m->data = aligned_alloc(64, bytes);
    if (!m->data) {
        Py_DECREF(m);
        return PyErr_NoMemory();
    }
    memset(m->data, 0, bytes);
    return (PyObject *)m;
}

static void object_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void matrix_free(PyObject *self) {
    free(((Matrix *)self)->data);
    object_free(self);
}

/* pack and unpack differ in the direction alone. */
static PyObject *move(Matrix *m, PyObject *args, int mode) {
    PyObject *bits;
    int first = 0, index = 0;
    if (!PyArg_ParseTuple(args, "O|ii", &bits, &first, &index)) return NULL;
    Held held = {.count = 0};
    void *memory = hold(&held, bits, "bits", (int)kind_bytes(m->kind), -1, mode, 0);
    PyObject *result = NULL;
    if (memory) {
        const Py_ssize_t items = held_bytes(&held) / (Py_ssize_t)kind_bytes(m->kind), rows = items / m->cols;
        if (items % m->cols || first < 0 || first + rows > m->rows || index < 0 || index >= m->count) {
            PyErr_Format(PyExc_ValueError, "%zd items at row %d of matrix %d do not fit %d x [%d, %d]", items, first,
                         index, m->count, m->rows, m->cols);
        } else {
            char *packed = m->data + m->bytes_each * (size_t)index;
            Py_BEGIN_ALLOW_THREADS
            if (mode == READ)
                pack_rows(packed, m->cols, m->kind, memory, first, (int)rows);
            else
                unpack_rows(packed, m->cols, m->kind, memory, first, (int)rows);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
    }
    let_go(&held);
    return result;
}

static PyObject *matrix_pack(PyObject *self, PyObject *args) { return move((Matrix *)self, args, READ); }
static PyObject *matrix_unpack(PyObject *self, PyObject *args) { return move((Matrix *)self, args, WRITE); }

static PyObject *matrix_nbytes(PyObject *self, void *closure) {
    (void)closure;
    const Matrix *m = (Matrix *)self;
    return PyLong_FromSize_t(m->bytes_each * (size_t)m->count);
}

static PyObject *matrix_shape(PyObject *self, void *closure) {
    (void)closure;
    const Matrix *m = (Matrix *)self;
    return Py_BuildValue("(iiii)", m->count, m->rows, m->cols, m->kind);
}

static PyMethodDef matrix_methods[] = {
    {"pack", matrix_pack, METH_VARARGS, "pack(bits, first=0, index=0): stored bits [n, cols] into rows first.. of a matrix"},
    {"unpack", matrix_unpack, METH_VARARGS, "unpack(bits, first=0, index=0): the stored bits of rows first.. into `bits`"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef matrix_properties[] = {
    {"nbytes", matrix_nbytes, NULL, "bytes of packed memory", NULL},
    {"shape", matrix_shape, NULL, "(count, rows, cols, kind)", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot matrix_slots[] = {
    {Py_tp_new, (void *)matrix_new},
    {Py_tp_dealloc, (void *)matrix_free},
    {Py_tp_methods, matrix_methods},
    {Py_tp_getset, matrix_properties},
    {Py_tp_doc, "Matrix(rows, cols, kind, count=1): `count` packed matrices of weights; kind 0 = fp32, 1 = bf16"},
    {0, NULL},
};
PyType_Spec matrix_spec = {"twinmill.model.core._core.Matrix", sizeof(Matrix), 0, Py_TPFLAGS_DEFAULT, matrix_slots};

static const Kernels *const *known_levels(int *count) {
    static const Kernels *found[3];
    static int many = 0;
    if (!many) {
        int n = 0;
#ifdef HAVE_X86
        __builtin_cpu_init();
#ifdef EMULATED_AVX512
        const int has_avx512 = 1;
#else
        const int has_avx512 = __builtin_cpu_supports("avx512f");
#endif
        if (has_avx512) found[n++] = &kernels_avx512;
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found[n++] = &kernels_avx2;
#endif
        found[n++] = &kernels_portable;
        many = n;
    }
    *count = many;
    return found;
}

/* The level of that name, the best one for ""; NULL with an exception. */
const Kernels *level_named(const char *name) {
    int count;
    const Kernels *const *levels = known_levels(&count);
    for (int i = 0; i < count; i++)
        if (!*name || !strcmp(levels[i]->name, name)) return levels[i];
    PyErr_Format(PyExc_ValueError, "this processor has no level '%s'", name);
    return NULL;
}

static PyObject *levels(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    int count;
    const Kernels *const *known = known_levels(&count);
    PyObject *list = PyTuple_New(count);
    for (int i = 0; list && i < count; i++) PyTuple_SetItem(list, i, PyUnicode_FromString(known[i]->name));
    return list;
}

static PyMethodDef functions[] = {
    {"levels", levels, METH_NOARGS, "Names of the instruction-set levels that this processor has, the best first."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type && !PyModule_AddType(module, *type);
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (!add_type(module, &matrix_spec, &matrix_type) || !add_type(module, &pool_spec, &pool_type) ||
        !add_type(module, &decoder_spec, &decoder_type) || PyModule_AddIntConstant(module, "F32", F32) ||
        PyModule_AddIntConstant(module, "BF16", BF16) || PyModule_AddIntConstant(module, "KV_BLOCK", KV_BLOCK)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
