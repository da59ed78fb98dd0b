/* Rows of a batch blended with the row before them. */
#ifndef HEADRACE_BLEND_H
#define HEADRACE_BLEND_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* blend_rows(rows, before, dtype, weight): each row becomes weight of itself and the rest of the one before it, as
 * that was; `before` is what the first row has before it, and as long as a row. */
PyObject *blend_rows(PyObject *module, PyObject *args);

#endif
