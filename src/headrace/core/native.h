/* What the files of this module have in common. */
#ifndef HEADRACE_NATIVE_H
#define HEADRACE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef words_methods[];
extern PyMethodDef rows_methods[];
extern PyMethodDef futex_methods[];
extern PyMethodDef permits_methods[];

#endif
