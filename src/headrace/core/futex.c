/* Waiting for a word of shared memory to change, and waking those who wait: threads of any process that maps it. */
#include "native.h"

#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int word_at(PyObject *buffer, Py_ssize_t index, Py_buffer *view, uint32_t **word) {
    if (PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE) < 0) return -1;
    if (index < 0 || index >= view->len / 4 || ((uintptr_t)view->buf & 3)) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "no such word");
        return -1;
    }
    *word = (uint32_t *)view->buf + index;
    return 0;
}

static PyObject *futex_wait(PyObject *self, PyObject *args) {
    PyObject *buffer;
    Py_ssize_t index;
    unsigned int expected;
    double seconds;
    if (!PyArg_ParseTuple(args, "OnId", &buffer, &index, &expected, &seconds)) return NULL;
    if (!(seconds >= 0.0 && seconds < 1e9)) {
        PyErr_SetString(PyExc_ValueError, "no number of seconds");
        return NULL;
    }
    Py_buffer view;
    uint32_t *word;
    if (word_at(buffer, index, &view, &word) < 0) return NULL;
    struct timespec limit;
    limit.tv_sec = (time_t)seconds;
    limit.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
    long status;
    int error;
    Py_BEGIN_ALLOW_THREADS
    status = syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, NULL, 0);
    error = errno;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyBool_FromLong(status == 0 || error != ETIMEDOUT);
}

static PyObject *futex_wake(PyObject *self, PyObject *args) {
    PyObject *buffer;
    Py_ssize_t index;
    int count;
    if (!PyArg_ParseTuple(args, "Oni", &buffer, &index, &count)) return NULL;
    Py_buffer view;
    uint32_t *word;
    if (word_at(buffer, index, &view, &word) < 0) return NULL;
    long woken = syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
    PyBuffer_Release(&view);
    return PyLong_FromLong(woken < 0 ? 0 : woken);
}

PyMethodDef futex_methods[] = {
    {"futex_wait", futex_wait, METH_VARARGS,
     "futex_wait(words, index, expected, seconds): wait until somebody wakes those who wait for a 32-bit word, unless it "
     "is another than expected; False: nobody did for so long"},
    {"futex_wake", futex_wake, METH_VARARGS,
     "futex_wake(words, index, count): wake so many of those who wait for a 32-bit word; how many that were"},
    {NULL, NULL, 0, NULL},
};
