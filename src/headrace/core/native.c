/* The module: what is called often on little data. */
#include "native.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Bit sets, rows and waiting in C.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL &&
        (PyModule_AddFunctions(module, words_methods) < 0 || PyModule_AddFunctions(module, rows_methods) < 0 ||
         PyModule_AddFunctions(module, futex_methods) < 0 || PyModule_AddFunctions(module, permits_methods) < 0))
        Py_CLEAR(module);
    return module;
}
