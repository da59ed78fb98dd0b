/* The Python side of the kernels: arguments in, statuses out, the GIL released around all work. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#include "blend.h"
#include "jobs.h"

_Static_assert(sizeof(Job) == 72, "the numpy dtype JOB has this size");

typedef struct {
    PyObject_HEAD Scratch scratch;
    int busy;
} Workspace;

static PyTypeObject *workspace_type;

static PyObject *workspace_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Workspace", names)) return NULL;
    return PyType_GenericAlloc(type, 0); /* zeroed: everything in it is made at first use */
}

static void workspace_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    scratch_free(&((Workspace *)self)->scratch);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int workspace_take(Workspace *ws) {
    if (ws->busy) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this Workspace is in use by another thread; make one per thread");
        return -1;
    }
    ws->busy = 1;
    return 0;
}

/* ---- buffers of many objects ---- */

typedef struct {
    Py_buffer *views;
    Py_ssize_t held;
} Views;

static int views_room(Views *views, Py_ssize_t n) {
    views->held = 0;
    views->views = PyMem_Calloc((size_t)(n ? n : 1), sizeof(Py_buffer));
    if (views->views == NULL) PyErr_NoMemory();
    return views->views == NULL ? -1 : 0;
}

static Py_buffer *views_get(Views *views, PyObject *object, int flags) {
    Py_buffer *view = &views->views[views->held];
    if (PyObject_GetBuffer(object, view, flags) < 0) return NULL;
    views->held++;
    return view;
}

static void views_release(Views *views) {
    for (Py_ssize_t i = 0; i < views->held; i++) PyBuffer_Release(&views->views[i]);
    PyMem_Free(views->views);
}

/* A uint8 array of shape (height, width, channels) with 1 or 3 channels. */
static int array_view(Views *views, PyObject *object, int writable, Source *source) {
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    Py_buffer *view = views_get(views, object, flags);
    if (view == NULL) return -1;
    int typed = view->itemsize == 1 && (view->format == NULL || strcmp(view->format, "B") == 0);
    if (!typed || view->ndim != 3 || (view->shape[2] != 1 && view->shape[2] != 3) ||
        view->shape[0] > INT32_MAX || view->shape[1] > INT32_MAX / 4) {
        PyErr_SetString(PyExc_ValueError, "an image must be a uint8 array of shape (height, width, 1 or 3)");
        return -1;
    }
    source->bytes = view->buf;
    source->size = (size_t)view->len;
    source->height = (int)view->shape[0];
    source->width = (int)view->shape[1];
    source->channels = (int)view->shape[2];
    return 0;
}

static int expect_size(const Py_buffer *view, size_t size, const char *what) {
    if ((size_t)view->len == size) return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes; %zu are needed", what, view->len, size);
    return -1;
}

/* ---- probe_many(blobs, out) ---- */

static PyObject *probe_many(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *blobs;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "Ow*:probe_many", &blobs, &out)) return NULL;
    PyObject *items = PySequence_Tuple(blobs), *result = NULL;
    if (items == NULL) goto done;
    Py_ssize_t n = PyTuple_Size(items);
    if (expect_size(&out, (size_t)n * 5 * sizeof(int32_t), "out") < 0) goto done;
    int32_t *row = out.buf;
    for (Py_ssize_t i = 0; i < n; i++, row += 5) {
        /* a few hundred bytes are read of each, so the GIL is kept */
        Py_buffer blob;
        Header header;
        if (PyObject_GetBuffer(PyTuple_GetItem(items, i), &blob, PyBUF_SIMPLE) < 0) goto done;
        header_read(blob.buf, (size_t)blob.len, &header);
        PyBuffer_Release(&blob);
        row[0] = header.kind;
        row[1] = header.width;
        row[2] = header.height;
        row[3] = header.orientation;
        row[4] = header.components;
    }
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(items);
    PyBuffer_Release(&out);
    return result;
}

/* ---- decode_many(workspace, blobs, outs, origins, status, max_pixels, as_stored) ---- */

static PyObject *decode_many(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *blobs, *outs, *origins_object;
    Workspace *ws;
    Py_buffer status;
    long long max_pixels;
    int as_stored;
    if (!PyArg_ParseTuple(args, "O!OOOw*Lp:decode_many", workspace_type, &ws, &blobs, &outs, &origins_object,
                          &status, &max_pixels, &as_stored))
        return NULL;
    PyObject *from = NULL, *into = NULL, *result = NULL;
    Views views = {NULL, 0};
    Source *targets = NULL;
    from = PySequence_Tuple(blobs);
    into = from ? PySequence_Tuple(outs) : NULL;
    if (into == NULL) goto done;
    Py_ssize_t n = PyTuple_Size(from);
    if (PyTuple_Size(into) != n) {
        PyErr_SetString(PyExc_ValueError, "blobs and outs must be of one length");
        goto done;
    }
    targets = PyMem_Calloc((size_t)(n ? n : 1), sizeof *targets);
    if (targets == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (views_room(&views, 2 * n + 1) < 0) goto done;
    if (expect_size(&status, (size_t)n * sizeof(int32_t), "status") < 0) goto done;
    const int32_t *origins = NULL;
    if (origins_object != Py_None) {
        Py_buffer *view = views_get(&views, origins_object, PyBUF_SIMPLE);
        if (view == NULL || expect_size(view, (size_t)n * 2 * sizeof(int32_t), "origins") < 0) goto done;
        origins = view->buf;
    }
    Py_buffer *first = views.views + views.held;
    for (Py_ssize_t i = 0; i < n; i++)
        if (views_get(&views, PyTuple_GetItem(from, i), PyBUF_SIMPLE) == NULL) goto done;
    for (Py_ssize_t i = 0; i < n; i++)
        if (array_view(&views, PyTuple_GetItem(into, i), 1, &targets[i]) < 0) goto done;
    if (workspace_take(ws) < 0) goto done;
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < n; i++) {
        Source blob = {first[i].buf, (size_t)first[i].len, 0, 0, 0};
        int x = origins ? origins[2 * i] : 0, y = origins ? origins[2 * i + 1] : 0;
        ((int32_t *)status.buf)[i] =
            decode_part(&ws->scratch, &blob, x, y, targets[i].width, targets[i].height, targets[i].channels,
                        origins == NULL, max_pixels, as_stored, (uint8_t *)targets[i].bytes);
    }
    Py_END_ALLOW_THREADS;
    ws->busy = 0;
    result = Py_NewRef(Py_None);
done:
    if (views.views) views_release(&views);
    PyMem_Free(targets);
    Py_XDECREF(from);
    Py_XDECREF(into);
    PyBuffer_Release(&status);
    return result;
}

/* ---- rows_many(workspace, sources, jobs, out, status, spec) ---- */

static int parse_spec(PyObject *tuple, Spec *spec) {
    enum { LARGEST = 1 << 15 };
    long long max_pixels;
    memset(spec, 0, sizeof *spec); /* padding too: specs are compared as bytes */
    if (!PyArg_ParseTuple(tuple, "iiiiiiipffffffL:spec", &spec->out_h, &spec->out_w, &spec->channels,
                          &spec->planar, &spec->dtype, &spec->method, &spec->dct_scaling, &spec->as_stored, &spec->scale[0],
                          &spec->scale[1], &spec->scale[2], &spec->bias[0], &spec->bias[1], &spec->bias[2],
                          &max_pixels))
        return -1;
    spec->max_pixels = max_pixels;
    if (spec->out_h < 1 || spec->out_w < 1 || spec->out_h > LARGEST || spec->out_w > LARGEST ||
        (spec->channels != 1 && spec->channels != 3) || spec->dtype < DT_UINT8 || spec->dtype > DT_BFLOAT16 || spec->method < BETWEEN ||
        spec->method > FILTER_LANCZOS) {
        PyErr_SetString(PyExc_ValueError, "spec is out of range");
        return -1;
    }
    return 0;
}

static int source_views(Views *views, PyObject *items, const Job *jobs, Source *sources) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(items); i++) {
        PyObject *item = PyTuple_GetItem(items, i);
        if (jobs[i].is_jpeg) {
            Py_buffer *view = views_get(views, item, PyBUF_SIMPLE);
            if (view == NULL) return -1;
            sources[i].bytes = view->buf;
            sources[i].size = (size_t)view->len;
        } else if (array_view(views, item, 0, &sources[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *rows_many(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *sources_object, *spec_object;
    Workspace *ws;
    Py_buffer jobs, out, status;
    if (!PyArg_ParseTuple(args, "O!Oy*w*w*O!:rows_many", workspace_type, &ws, &sources_object, &jobs, &out,
                          &status, &PyTuple_Type, &spec_object))
        return NULL;
    PyObject *items = NULL, *result = NULL;
    Views views = {NULL, 0};
    Source *sources = NULL;
    Spec spec;
    if (parse_spec(spec_object, &spec) < 0) goto done;
    items = PySequence_Tuple(sources_object);
    if (items == NULL) goto done;
    Py_ssize_t n = PyTuple_Size(items);
    size_t row_bytes = spec_row_bytes(&spec);
    if (expect_size(&jobs, (size_t)n * sizeof(Job), "jobs") < 0 ||
        expect_size(&out, (size_t)n * row_bytes, "out") < 0 ||
        expect_size(&status, (size_t)n * sizeof(int32_t), "status") < 0)
        goto done;
    sources = PyMem_Calloc((size_t)(n ? n : 1), sizeof *sources);
    if (sources == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (views_room(&views, n) < 0) goto done;
    if (source_views(&views, items, jobs.buf, sources) < 0) goto done;
    if (workspace_take(ws) < 0) goto done;
    int prepared;
    Py_BEGIN_ALLOW_THREADS;
    prepared = resampler_prepare(&ws->scratch.resampler, &spec) == 0;
    for (Py_ssize_t i = 0; prepared && i < n; i++)
        ((int32_t *)status.buf)[i] = job_run(&ws->scratch, &spec, (const Job *)jobs.buf + i, &sources[i],
                                             (uint8_t *)out.buf + (size_t)i * row_bytes);
    Py_END_ALLOW_THREADS;
    ws->busy = 0;
    result = prepared ? Py_NewRef(Py_None) : PyErr_NoMemory();
done:
    if (views.views) views_release(&views);
    PyMem_Free(sources);
    Py_XDECREF(items);
    PyBuffer_Release(&jobs);
    PyBuffer_Release(&out);
    PyBuffer_Release(&status);
    return result;
}

/* ---- the rest ---- */

static PyObject *explain(PyObject *module, PyObject *args) {
    (void)module;
    Workspace *ws;
    if (!PyArg_ParseTuple(args, "O!:explain", workspace_type, &ws)) return NULL;
    return PyUnicode_DecodeUTF8(
        ws->scratch.decoder ? decoder_message(ws->scratch.decoder) : "",
        ws->scratch.decoder ? (Py_ssize_t)strlen(decoder_message(ws->scratch.decoder)) : 0, "replace");
}

static PyObject *own_mcus(PyObject *module, PyObject *args) {
    (void)module;
    Workspace *ws;
    if (!PyArg_ParseTuple(args, "O!:own_mcus", workspace_type, &ws)) return NULL;
    return PyLong_FromUnsignedLong(ws->scratch.decoder ? decoder_own_mcus(ws->scratch.decoder) : 0);
}

static PyObject *load(PyObject *module, PyObject *args) {
    (void)module;
    enum { MOST = 32 };
    void *calls[MOST];
    const char *path;
    PyObject *addresses;
    Py_ssize_t n = 0;
    while (library_calls[n] != NULL) n++;
    if (!PyArg_ParseTuple(args, "sO!:load", &path, &PyTuple_Type, &addresses)) return NULL;
    if (PyTuple_Size(addresses) != n || n > MOST)
        return PyErr_Format(PyExc_ValueError, "one address is needed for each of CALLS");
    for (Py_ssize_t i = 0; i < n; i++) {
        calls[i] = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, i));
        if (calls[i] == NULL)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "an address is 0");
    }
    const char *wrong = library_use(path, calls);
    if (wrong != NULL) return PyErr_Format(PyExc_OSError, "%s", wrong);
    return PyLong_FromLong(library_version());
}

static PyObject *call_names(void) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && library_calls[i] != NULL; i++) {
        PyObject *name = PyUnicode_FromString(library_calls[i]);
        if (name == NULL || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    PyObject *fixed = names ? PyList_AsTuple(names) : NULL;
    Py_XDECREF(names);
    return fixed;
}

static PyObject *kernel_sets(PyObject *module, PyObject *args) {
    (void)module, (void)args;
    const Lanes *found[8];
    int n = lanes_all(found, 8);
    PyObject *names = PyTuple_New(n);
    for (int i = 0; names != NULL && i < n; i++) {
        PyObject *name = PyUnicode_FromString(found[i]->name);
        if (name == NULL) Py_CLEAR(names);
        else PyTuple_SetItem(names, i, name);
    }
    return names;
}

static PyObject *use_kernels(PyObject *module, PyObject *args) {
    (void)module;
    const char *name;
    if (!PyArg_ParseTuple(args, "s:use_kernels", &name)) return NULL;
    if (lanes_use(name) < 0)
        return PyErr_Format(PyExc_ValueError, "this machine cannot run the %s kernels", name);
    Py_RETURN_NONE;
}

static PyObject *use_scans(PyObject *module, PyObject *args) {
    (void)module;
    int own;
    if (!PyArg_ParseTuple(args, "p:use_scans", &own)) return NULL;
    decoder_scans(own);
    Py_RETURN_NONE;
}

static PyObject *check_kernels(PyObject *module, PyObject *args) {
    (void)module, (void)args;
    const Lanes *found[8];
    int n = lanes_all(found, 8);
    for (int i = 0; i < n; i++) {
        const char *differs = lanes_differ(found[i]);
        if (differs)
            return PyErr_Format(PyExc_AssertionError, "%s of the %s kernels differs from plain C", differs,
                                found[i]->name);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"probe_many", probe_many, METH_VARARGS, "probe_many(blobs, out): read headers into int32 (n, 5)"},
    {"decode_many", decode_many, METH_VARARGS,
     "decode_many(workspace, blobs, outs, origins, status, max_pixels, as_stored): decode whole images or parts"},
    {"rows_many", rows_many, METH_VARARGS,
     "rows_many(workspace, sources, jobs, out, status, spec): resample a box of each source into a row"},
    {"blend_rows", blend_rows, METH_VARARGS,
     "blend_rows(rows, before, dtype, weight): blend each row with the one before it, in place"},
    {"explain", explain, METH_VARARGS, "explain(workspace): libjpeg's words for the last failure"},
    {"own_mcus", own_mcus, METH_VARARGS,
     "own_mcus(workspace): pieces of the last JPEG whose codes were not read by libjpeg"},
    {"load", load, METH_VARARGS,
     "load(path, addresses): use the libjpeg whose CALLS are there; returns its interface"},
    {"kernel_sets", kernel_sets, METH_NOARGS, "kernel_sets(): names of the kernels this machine can run"},
    {"use_kernels", use_kernels, METH_VARARGS, "use_kernels(name): run these kernels from now on"},
    {"use_scans", use_scans, METH_VARARGS,
     "use_scans(own): read Huffman codes faster than libjpeg does, or leave them to it"},
    {"check_kernels", check_kernels, METH_NOARGS,
     "check_kernels(): raise if any kernel differs from plain C"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot workspace_slots[] = {
    {Py_tp_new, workspace_new},
    {Py_tp_dealloc, workspace_dealloc},
    {Py_tp_doc, "Scratch memory and a decoder for one thread at a time."},
    {0, NULL},
};

static PyType_Spec workspace_spec = {"headrace.recipes.image._kernels.Workspace", sizeof(Workspace), 0,
                                     Py_TPFLAGS_DEFAULT, workspace_slots};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", "C kernels for images.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    PyObject *names = call_names();
    workspace_type = (PyTypeObject *)PyType_FromSpec(&workspace_spec);
    int made = names != NULL && workspace_type != NULL &&
               PyModule_AddObjectRef(module, "CALLS", names) == 0 &&
               PyModule_AddObjectRef(module, "Workspace", (PyObject *)workspace_type) == 0 &&
               PyModule_AddIntConstant(module, "JOB_BYTES", sizeof(Job)) == 0;
    Py_XDECREF(names);
    if (!made) Py_CLEAR(module);
    return module;
}
