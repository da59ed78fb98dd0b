/* Copying rows of a batch to and from extents of a cache: many in one call, without the GIL. */
#include "native.h"

#include <string.h>

typedef struct {
    Py_buffer view;
    int open;
} Held;

static void held_free(Held *held, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (held[i].open) PyBuffer_Release(&held[i].view);
    PyMem_Free(held);
}

/* The buffer of each extent. NULL with an error set if one is too short. */
static Held *held_open(PyObject *extents, Py_ssize_t count, Py_ssize_t least, int writable) {
    Held *held = PyMem_Calloc((size_t)(count ? count : 1), sizeof *held);
    if (held == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *extent = PyList_GetItem(extents, i); /* borrowed */
        if (extent == NULL ||
            PyObject_GetBuffer(extent, &held[i].view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
            goto failed;
        held[i].open = 1;
        if (held[i].view.len < least) {
            PyErr_Format(PyExc_ValueError, "an extent of %zd bytes, where rows have %zd", held[i].view.len,
                         least);
            goto failed;
        }
    }
    return held;
failed:
    held_free(held, count);
    return NULL;
}

static PyObject *copy_rows(PyObject *args, const char *format, int load) {
    PyObject *block, *places, *extents;
    Py_ssize_t start;
    if (!PyArg_ParseTuple(args, format, &block, &PyList_Type, &places, &PyList_Type, &extents, &start))
        return NULL;
    Py_buffer rows;
    if (PyObject_GetBuffer(block, &rows, PyBUF_STRIDES | (load ? PyBUF_WRITABLE : 0)) < 0) return NULL;
    Py_ssize_t count = PyList_Size(extents), *at = NULL;
    Held *held = NULL;
    PyObject *done = NULL;
    if (rows.ndim != 2 || rows.itemsize != 1 || (rows.shape[1] > 1 && rows.strides[1] != 1) || start < 0 ||
        PyList_Size(places) != count) {
        PyErr_SetString(PyExc_ValueError, "expected a matrix of bytes, and a place in it for each extent");
        goto end;
    }
    Py_ssize_t size = rows.shape[1];
    at = PyMem_Calloc((size_t)(count ? count : 1), sizeof *at);
    if (at == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        at[i] = PyLong_AsSsize_t(PyList_GetItem(places, i));
        if (at[i] == -1 && PyErr_Occurred()) goto end;
        if (at[i] < 0 || at[i] >= rows.shape[0]) {
            PyErr_Format(PyExc_IndexError, "row %zd of %zd", at[i], rows.shape[0]);
            goto end;
        }
    }
    held = held_open(extents, count, start + size, !load);
    if (held == NULL) goto end;
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++) {
        char *row = (char *)rows.buf + at[i] * rows.strides[0], *extent = (char *)held[i].view.buf + start;
        if (load) memcpy(row, extent, (size_t)size);
        else memcpy(extent, row, (size_t)size);
    }
    Py_END_ALLOW_THREADS;
    held_free(held, count);
    done = Py_NewRef(Py_None);
end:
    PyMem_Free(at);
    PyBuffer_Release(&rows);
    return done;
}

static PyObject *load_rows(PyObject *module, PyObject *args) {
    return copy_rows(args, "OO!O!n:load_rows", 1);
}

static PyObject *dump_rows(PyObject *module, PyObject *args) {
    return copy_rows(args, "OO!O!n:dump_rows", 0);
}

PyMethodDef rows_methods[] = {
    {"load_rows", load_rows, METH_VARARGS,
     "load_rows(matrix, rows, extents, start): copy what each extent has from start on into its row"},
    {"dump_rows", dump_rows, METH_VARARGS,
     "dump_rows(matrix, rows, extents, start): copy each row into its extent, from start on"},
    {NULL, NULL, 0, NULL},
};
