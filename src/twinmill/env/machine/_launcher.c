/* The native launcher as a Module of Python, stable ABI. See launcher/launcher.h. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "launcher/launcher.h"

#include <unistd.h>

/* A fork after which the child's interpreter works (random numbers are seeded anew, locks are free). */
static pid_t fork_python(void)
{
    PyOS_BeforeFork();
    pid_t pid = fork();
    if (pid == 0)
        PyOS_AfterFork_Child();
    else
        PyOS_AfterFork_Parent();
    return pid;
}

PyDoc_STRVAR(serve_doc,
             "serve(orders, outside, inside, user_xattr, spares) -> list[str] | None\n\n"
             "Be the forge until the host is gone (None). Returns a command in a fork of a machine's process 1, which\n"
             "shall run it with this interpreter: never in the process that called.");

static PyObject *serve(PyObject *module, PyObject *args)
{
    static struct settings settings;
    int orders;
    (void)module;
    if (!PyArg_ParseTuple(args, "iIIpi", &orders, &settings.outside, &settings.inside, &settings.user_xattr,
                          &settings.spares))
        return NULL;
    char **argv = serve_orders(orders, &settings, fork_python);
    if (!argv)
        Py_RETURN_NONE;
    PyObject *words = PyList_New(0);
    for (char **word = argv; words && *word; word++) {
        PyObject *text = PyUnicode_DecodeFSDefault(*word);
        if (!text || PyList_Append(words, text) < 0)
            Py_CLEAR(words);
        Py_XDECREF(text);
    }
    return words;
}

static PyMethodDef methods[] = {{"serve", serve, METH_VARARGS, serve_doc}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_launcher", "The native launcher of machines.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__launcher(void)
{
    return PyModule_Create(&module);
}
