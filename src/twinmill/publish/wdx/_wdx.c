/* The fast half of wdx1: the same bytes as reference.py, for CPython's stable ABI.
 *
 * Arrays come and go through the buffer protocol; the GIL is released while tiles are worked on. Arguments are checked by
 * extension.py, and again here wherever a lie could touch memory. Payloads are trusted in nothing. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "_decode.h"
#include "_encode.h"
#include "_passes.h"

static const path *used = &PORTABLE;

/* ---- arguments */

/* The number of elements, or -1 with an exception set. */
static int64_t elements(const Py_buffer *b, int width, const char *what) {
    if ((width == 1 || width == 2 || width == 4) && b->len % width == 0 && b->len / width <= TILE_MAX) return b->len / width;
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes are no tile of elements of %d bytes", what, b->len, width);
    return -1;
}

static void release(Py_buffer *buffers, int count) {
    for (int i = 0; i < count; i++)
        if (buffers[i].obj) PyBuffer_Release(&buffers[i]);
}

static PyObject *mismatch(void) {
    PyErr_SetString(PyExc_ValueError, "arrays of different lengths");
    return NULL;
}

/* ---- paths */

static PyObject *py_paths(PyObject *self, PyObject *none) {
    PyObject *names = PyList_New(0);
    (void)self, (void)none;
    for (int i = 0; names && i < PATH_COUNT; i++) {
        PyObject *name = PATHS[i]->works() ? PyUnicode_FromString(PATHS[i]->name) : NULL;
        if (!name && !PyErr_Occurred()) continue;
        if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *py_use(PyObject *self, PyObject *args) {
    const char *name;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    for (int i = 0; i < PATH_COUNT; i++)
        if (strcmp(PATHS[i]->name, name) == 0 && PATHS[i]->works()) {
            used = PATHS[i];
            Py_RETURN_NONE;
        }
    PyErr_Format(PyExc_ValueError, "path %s does not work on this machine", name);
    return NULL;
}

/* ---- tables */

#define CAPSULE "twinmill.wdx.tables"

static void free_tables(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, CAPSULE)); }

static const char *tables_make(tables *t, const Py_buffer *b) { /* NULL = well */
    const uint8_t *modes = b[0].buf;
    const uint16_t *positions = b[2].buf, *values = b[3].buf;
    Py_ssize_t rows = t->classes + 1;
    alphabet_make(&t->gaps, GAP_DIRECT, GAP_RAW);
    alphabet_make(&t->values, VALUE_DIRECT, 8 * (uint32_t)t->width);
    if (b[0].len != t->classes || b[1].len != 2 * rows || b[2].len != 2 * rows * GAP_TOKENS ||
        b[3].len != 2 * rows * (Py_ssize_t)t->values.tokens)
        return "tables of a wrong size";
    memcpy(t->chance, b[1].buf, (size_t)b[1].len);
    for (int row = 0; row < rows; row++) {
        t->mode[row] = row < t->classes ? modes[row] : MODE_GAPS;
        if (t->mode[row] > MODE_HOLES) return "tables of an unknown mode";
        uint32_t symbols = t->mode[row] == MODE_NIBBLES ? NIBBLE : GAP_TOKENS;
        if (!row_make(positions + row * GAP_TOKENS, symbols, t->write_position[row], t->read_position[row]) ||
            !row_make(values + row * t->values.tokens, t->values.tokens, t->write_value[row], t->read_value[row]))
            return "frequencies with a wrong sum";
        uint32_t needed = t->mode[row] == MODE_NIBBLES ? 0 : GAP_TOKENS - 1; /* every nibble; else the escape */
        for (uint32_t s = needed; s < symbols; s++)
            if (t->write_position[row][s].complement == WHOLE) return "frequencies that cannot code everything";
        if (t->write_value[row][t->values.tokens - 1].complement == WHOLE) return "values without an escape";
    }
    return NULL;
}

static PyObject *py_prepare(PyObject *self, PyObject *args) {
    Py_buffer b[4] = {{0}};
    PyObject *capsule = NULL;
    tables *t = calloc(1, sizeof *t);
    (void)self;
    if (!t) return PyErr_NoMemory();
    if (PyArg_ParseTuple(args, "iiIiiy*y*y*y*", &t->width, &t->shift, &t->exponents, &t->first, &t->classes, &b[0], &b[1], &b[2],
                         &b[3])) {
        int fits = (t->width == 1 || t->width == 2 || t->width == 4) && t->shift >= 0 && t->shift < 8 * t->width &&
                   t->exponents >= 1 && t->exponents <= 256 && (t->exponents & (t->exponents - 1)) == 0 && t->first >= 0 &&
                   t->first < (int)t->exponents && t->classes >= 1 && t->classes <= CLASSES_MAX;
        const char *wrong = fits ? tables_make(t, b) : "tables for no dtype";
        if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
        else capsule = PyCapsule_New(t, CAPSULE, free_tables);
        release(b, 4);
    }
    if (!capsule) free(t);
    return capsule;
}

/* ---- patches */

static PyObject *three_arrays(Py_ssize_t count, int width) {
    PyObject *index = PyByteArray_FromStringAndSize(NULL, 4 * count), *old = PyByteArray_FromStringAndSize(NULL, width * count);
    PyObject *new = PyByteArray_FromStringAndSize(NULL, width * count);
    PyObject *all = index && old && new ? PyTuple_Pack(3, index, old, new) : NULL;
    Py_XDECREF(index);
    Py_XDECREF(old);
    Py_XDECREF(new);
    return all;
}

static void *array_of(PyObject *all, int i) { return PyByteArray_AsString(PyTuple_GetItem(all, i)); }

static PyObject *compare_with(PyObject *args, const char *format, int advances) {
    Py_buffer b[2] = {{0}};
    int width, well = 0;
    changes c = {0};
    PyObject *all = NULL;
    if (!PyArg_ParseTuple(args, format, &b[0], &b[1], &width)) return NULL;
    int64_t size = elements(&b[0], width, "before");
    if (size >= 0 && b[0].len != b[1].len) mismatch();
    else if (size >= 0) {
        Py_BEGIN_ALLOW_THREADS
        well = compare(used, b[0].buf, b[1].buf, (uint32_t)size, width, advances ? b[0].buf : NULL, &c);
        Py_END_ALLOW_THREADS
        all = well ? three_arrays(c.count, width) : PyErr_NoMemory();
    }
    if (all && c.count) {
        memcpy(array_of(all, 0), c.index, 4 * (size_t)c.count);
        memcpy(array_of(all, 1), c.old, (size_t)c.count * width);
        memcpy(array_of(all, 2), c.new, (size_t)c.count * width);
    }
    changes_free(&c);
    release(b, 2);
    return all;
}

static PyObject *py_compare(PyObject *self, PyObject *args) {
    (void)self;
    return compare_with(args, "y*y*i", 0);
}

static PyObject *py_compare_and_advance(PyObject *self, PyObject *args) {
    (void)self;
    return compare_with(args, "w*y*i", 1);
}

static PyObject *py_scatter(PyObject *self, PyObject *args) {
    Py_buffer b[3] = {{0}};
    int width, inside = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*y*y*i", &b[0], &b[1], &b[2], &width)) return NULL;
    int64_t size = elements(&b[0], width, "target"), count = size < 0 ? -1 : elements(&b[1], 4, "index");
    if (count >= 0 && b[2].len != count * width) mismatch();
    else if (count >= 0) {
        Py_BEGIN_ALLOW_THREADS
        inside = scatter(b[0].buf, (uint32_t)size, width, b[1].buf, b[2].buf, (uint32_t)count);
        Py_END_ALLOW_THREADS
        if (!inside) PyErr_SetString(PyExc_IndexError, "a position outside of the target");
    }
    release(b, 3);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* ---- digest */

static PyObject *py_digest(PyObject *self, PyObject *args) {
    Py_buffer b = {0};
    int width;
    uint64_t halves[2];
    (void)self;
    if (!PyArg_ParseTuple(args, "y*i", &b, &width)) return NULL;
    int64_t size = elements(&b, width, "bits");
    if (size >= 0) {
        Py_BEGIN_ALLOW_THREADS
        digest(used, b.buf, width, (uint32_t)size, halves);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&b);
    return size < 0 ? NULL : PyBytes_FromStringAndSize((const char *)halves, sizeof halves);
}

static PyObject *py_advance(PyObject *self, PyObject *args) {
    Py_buffer b[4] = {{0}};
    int width;
    uint64_t halves[2] = {0};
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*i", &b[0], &b[1], &b[2], &b[3], &width)) return NULL;
    int64_t count = elements(&b[1], 4, "index");
    if (count >= 0 && (b[0].len != sizeof halves || b[2].len != count * width || b[3].len != count * width)) mismatch();
    else if (count >= 0) {
        memcpy(halves, b[0].buf, sizeof halves);
        Py_BEGIN_ALLOW_THREADS
        advance(used, b[1].buf, b[2].buf, b[3].buf, width, (uint32_t)count, halves);
        Py_END_ALLOW_THREADS
    }
    release(b, 4);
    return PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize((const char *)halves, sizeof halves);
}

/* ---- statistics */

static PyObject *py_gather(PyObject *self, PyObject *args) {
    Py_buffer b[9] = {{0}};
    int width, shift;
    unsigned exponents;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*w*w*w*w*w*w*y*y*iiI", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6], &b[7], &b[8], &width,
                          &shift, &exponents))
        return NULL;
    int64_t size = elements(&b[7], width, "before");
    uint32_t values = 64 + 4 * (8 * (uint32_t)width - VALUE_DIRECT) + 1;
    Py_ssize_t row = 8 * (Py_ssize_t)exponents;
    if (size >= 0 && (exponents > 256 || b[0].len != row || b[1].len != row || b[2].len != row * GAP_TOKENS ||
                      b[3].len != row * GAP_TOKENS || b[4].len != row * NIBBLE || b[5].len != row * values ||
                      b[6].len != 8 * GAP_TOKENS || b[8].len != b[7].len))
        mismatch();
    else if (size >= 0) {
        statistics s = {b[0].buf, b[1].buf, b[2].buf, b[3].buf, b[4].buf, b[5].buf, b[6].buf};
        Py_BEGIN_ALLOW_THREADS
        gather(&s, b[7].buf, b[8].buf, (uint32_t)size, width, shift, exponents, values);
        Py_END_ALLOW_THREADS
    }
    release(b, 9);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* ---- tiles: encode returns bytes; decode three arrays, or the number of a reason */

static PyObject *py_encode_body(PyObject *self, PyObject *args) {
    Py_buffer b[4] = {{0}};
    PyObject *capsule, *payload = NULL;
    int kind;
    uint8_t *bytes = NULL;
    size_t length = 0;
    enum reason why = FINE;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*y*y*y*i", &capsule, &b[0], &b[1], &b[2], &b[3], &kind)) return NULL;
    const tables *t = PyCapsule_GetPointer(capsule, CAPSULE);
    int64_t size = t ? elements(&b[0], t->width, "before") : -1, count = size < 0 ? -1 : elements(&b[1], 4, "index");
    if (count >= 0 && (count == 0 || count > size || b[2].len != count * t->width || b[3].len != b[2].len)) mismatch();
    else if (count >= 0) {
        const uint32_t *index = b[1].buf;
        for (int64_t k = 0; k < count && !PyErr_Occurred(); k++)
            if (index[k] >= size || (k && index[k] <= index[k - 1]))
                PyErr_SetString(PyExc_ValueError, "positions that do not rise within the tile");
    }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        why = encode_body(t, used, b[0].buf, (uint32_t)size, b[1].buf, b[2].buf, b[3].buf, (uint32_t)count, kind, &bytes, &length);
        Py_END_ALLOW_THREADS
        if (!why) payload = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)length);
        else if (why == NO_MEMORY) PyErr_NoMemory();
        else PyErr_SetString(PyExc_ValueError, "the patch does not belong to this tile");
    }
    free(bytes);
    release(b, 4);
    return payload;
}

static PyObject *py_decode_body(PyObject *self, PyObject *args) {
    Py_buffer b[2] = {{0}};
    PyObject *capsule, *all = NULL;
    enum reason why = FINE;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*y*", &capsule, &b[0], &b[1])) return NULL;
    const tables *t = PyCapsule_GetPointer(capsule, CAPSULE);
    int64_t size = t ? elements(&b[0], t->width, "before") : -1;
    if (size > 0 && b[1].len > 0) {
        decoder d = {.t = t, .p = used, .before = b[0].buf, .size = (uint32_t)size};
        uint32_t *index = NULL;
        Py_BEGIN_ALLOW_THREADS
        why = decode_open(&d, b[1].buf, (size_t)b[1].len);
        if (!why && !(index = malloc(((size_t)d.count + 4) * sizeof *index))) why = NO_MEMORY;
        Py_END_ALLOW_THREADS
        if (!why && (all = three_arrays(d.count, t->width))) {
            uint8_t *old = array_of(all, 1), *new = array_of(all, 2);
            Py_BEGIN_ALLOW_THREADS
            why = decode_patch(&d, b[1].buf, (size_t)b[1].len, index, old, new);
            Py_END_ALLOW_THREADS
            memcpy(array_of(all, 0), index, 4 * (size_t)d.count);
        }
        free(index);
        decode_close(&d);
    } else if (size >= 0) {
        mismatch();
    }
    release(b, 2);
    if (why) {
        Py_CLEAR(all);
        return why == NO_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(why);
    }
    return all;
}

static PyMethodDef METHODS[] = {
    {"paths", py_paths, METH_NOARGS, "Names of the paths that work on this machine, fastest first."},
    {"use", py_use, METH_VARARGS, "use(name): take this path from now on."},
    {"prepare", py_prepare, METH_VARARGS, "prepare(width, shift, exponents, first, classes, modes, chances, positions, values)"},
    {"compare", py_compare, METH_VARARGS, "compare(before, after, width) -> (index, old, new)"},
    {"compare_and_advance", py_compare_and_advance, METH_VARARGS, "compare_and_advance(snapshot, new, width)"},
    {"scatter", py_scatter, METH_VARARGS, "scatter(target, index, bits, width)"},
    {"digest", py_digest, METH_VARARGS, "digest(bits, width) -> 16 bytes"},
    {"advance", py_advance, METH_VARARGS, "advance(digest, index, old, new, width) -> 16 bytes"},
    {"gather", py_gather, METH_VARARGS,
     "gather(seen, changed, gaps, holes, nibbles, values, flat, before, after, width, shift, exponents)"},
    {"encode_body", py_encode_body, METH_VARARGS, "encode_body(prepared, before, index, old, new, kind) -> bytes"},
    {"decode_body", py_decode_body, METH_VARARGS, "decode_body(prepared, before, payload) -> (index, old, new) or a reason"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_wdx", .m_size = 0, .m_methods = METHODS, .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__wdx(void) { return PyModuleDef_Init(&MODULE); }
