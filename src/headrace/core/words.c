/* Bit sets over samples, and the random choice of some: what a shared host's draws are made of.
 *
 * Each function gives what its counterpart in bits.py and random.py gives. There are dozens of calls per batch on
 * arrays of a batch's length, so what counts is the cost of a call; the GIL is held. */
#include "native.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN 0x9E3779B97F4A7C15u
#define UNIT (1.0 / 9007199254740992.0) /* 2^-53 */

static uint64_t mix(uint64_t word) {
    word += GOLDEN;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* ---- arrays ---- */

typedef struct {
    Py_buffer view;
    char *data;
    Py_ssize_t length, stride;
} Array;

/* A vector of elements of ``size`` bytes; only those of ``strided`` may have gaps. */
static int array_open(Array *array, PyObject *object, Py_ssize_t size, int writable, int strided) {
    int flags = PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &array->view, flags) < 0) return -1;
    Py_buffer *view = &array->view;
    if (view->ndim != 1 || view->itemsize != size ||
        (!strided && view->shape[0] > 1 && view->strides[0] != size)) {
        PyBuffer_Release(view);
        PyErr_Format(PyExc_ValueError, "expected a vector of elements of %zd bytes", size);
        return -1;
    }
    array->data = view->buf;
    array->length = view->shape[0];
    array->stride = view->strides[0];
    return 0;
}

static void array_close(Array *array) {
    PyBuffer_Release(&array->view);
}

static int64_t array_id(const Array *ids, Py_ssize_t at) {
    int64_t id;
    memcpy(&id, ids->data + at * ids->stride, sizeof id);
    return id;
}

/* A set, and a vector beside it. */
typedef struct {
    Array set, other;
} Pair;

static int pair_open(Pair *pair, PyObject *set, int changes, PyObject *other, Py_ssize_t size, int writable) {
    if (array_open(&pair->set, set, 8, changes, 0) < 0) return -1;
    /* (what is only read may have gaps: a column of a table) */
    if (array_open(&pair->other, other, size, writable, !writable) == 0) return 0;
    array_close(&pair->set);
    return -1;
}

static void pair_close(Pair *pair) {
    array_close(&pair->other);
    array_close(&pair->set);
}

/* A set and ids, all of which have a place in it. */
static int ids_open(Pair *pair, PyObject *set, int changes, PyObject *wanted) {
    if (pair_open(pair, set, changes, wanted, 8, 0) < 0) return -1;
    uint64_t end = 64 * (uint64_t)pair->set.length;
    for (Py_ssize_t i = 0; i < pair->other.length; i++) {
        int64_t id = array_id(&pair->other, i);
        if ((uint64_t)id >= end) {
            PyErr_Format(PyExc_IndexError, "id %lld of a set over %llu samples", (long long)id,
                         (unsigned long long)end);
            pair_close(pair);
            return -1;
        }
    }
    return 0;
}

static int has(const uint64_t *words, int64_t id) {
    return words[id >> 6] >> (id & 63) & 1;
}

/* ---- sets ---- */

/* Looks ids up: whether each is there, into bytes; or adds that to counts of two bytes. */
static PyObject *look_up(PyObject *args, const char *format, Py_ssize_t size) {
    PyObject *set, *wanted, *into;
    Pair pair;
    Array out;
    if (!PyArg_ParseTuple(args, format, &set, &wanted, &into)) return NULL;
    if (ids_open(&pair, set, 0, wanted) < 0) return NULL;
    if (array_open(&out, into, size, 1, 0) < 0) {
        pair_close(&pair);
        return NULL;
    }
    const uint64_t *words = (uint64_t *)pair.set.data;
    int fits = out.length == pair.other.length;
    for (Py_ssize_t i = 0; fits && i < out.length; i++) {
        int there = has(words, array_id(&pair.other, i));
        if (size == 1) out.data[i] = (char)there;
        else ((uint16_t *)out.data)[i] += (uint16_t)there;
    }
    array_close(&out);
    pair_close(&pair);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the answers have another length");
    Py_RETURN_NONE;
}

static PyObject *words_test(PyObject *module, PyObject *args) {
    return look_up(args, "OOO:test", 1);
}

static PyObject *words_add_needs(PyObject *module, PyObject *args) {
    return look_up(args, "OOO:add_needs", 2);
}

static PyObject *change(PyObject *args, const char *format, int present) {
    PyObject *set, *wanted;
    Pair pair;
    if (!PyArg_ParseTuple(args, format, &set, &wanted)) return NULL;
    if (ids_open(&pair, set, 1, wanted) < 0) return NULL;
    uint64_t *words = (uint64_t *)pair.set.data;
    for (Py_ssize_t i = 0; i < pair.other.length; i++) {
        int64_t id = array_id(&pair.other, i);
        uint64_t bit = (uint64_t)1 << (id & 63);
        words[id >> 6] = present ? words[id >> 6] | bit : words[id >> 6] & ~bit;
    }
    pair_close(&pair);
    Py_RETURN_NONE;
}

static PyObject *words_put(PyObject *module, PyObject *args) {
    return change(args, "OO:put", 1);
}

static PyObject *words_drop(PyObject *module, PyObject *args) {
    return change(args, "OO:drop", 0);
}

static uint64_t count_words(const uint64_t *words, Py_ssize_t length) {
    uint64_t total = 0;
    for (Py_ssize_t i = 0; i < length; i++) total += (uint64_t)__builtin_popcountll(words[i]);
    return total;
}

static PyObject *words_count(PyObject *module, PyObject *set) {
    Array words;
    if (array_open(&words, set, 8, 0, 0) < 0) return NULL;
    uint64_t total = count_words((uint64_t *)words.data, words.length);
    array_close(&words);
    return PyLong_FromUnsignedLongLong(total);
}

static PyObject *words_members(PyObject *module, PyObject *args) {
    PyObject *set, *into;
    Pair pair;
    if (!PyArg_ParseTuple(args, "OO:members", &set, &into)) return NULL;
    if (pair_open(&pair, set, 0, into, 8, 1) < 0) return NULL;
    const uint64_t *words = (uint64_t *)pair.set.data;
    int64_t *next = (int64_t *)pair.other.data;
    int fits = (uint64_t)pair.other.length == count_words(words, pair.set.length);
    for (Py_ssize_t i = 0; fits && i < pair.set.length; i++)
        for (uint64_t word = words[i]; word; word &= word - 1)
            *next++ = 64 * (int64_t)i + __builtin_ctzll(word);
    pair_close(&pair);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the members are not that many");
    Py_RETURN_NONE;
}

/* ---- random choice ---- */

/* The first ``wanted`` different numbers of 0..below-1 out of ``number`` random ones, as they come; with a set, of
 * those that are in it. How many were found; -1 without memory. */
static Py_ssize_t draw(uint64_t key, Py_ssize_t number, uint64_t below, const uint64_t *set, Py_ssize_t wanted,
                       int64_t *out) {
    size_t places = 64;
    while (places < 2 * (size_t)wanted + 2) places *= 2;
    uint64_t *seen = calloc(places, sizeof *seen); /* number + 1; open addressing, at most half full */
    if (seen == NULL) return -1;
    double scale = UNIT * (double)below;
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; i < number && found < wanted; i++) {
        uint64_t one = (uint64_t)((double)(mix((uint64_t)i ^ key) >> 11) * scale);
        if (set != NULL && !has(set, (int64_t)one)) continue;
        size_t place = one * GOLDEN >> 32 & (places - 1);
        while (seen[place] && seen[place] != one + 1) place = (place + 1) & (places - 1);
        if (seen[place]) continue;
        seen[place] = one + 1;
        out[found++] = (int64_t)one;
    }
    free(seen);
    return found;
}

static PyObject *words_draw(PyObject *module, PyObject *args) {
    PyObject *set, *into;
    unsigned long long key, below;
    Py_ssize_t number;
    Array words = {.data = NULL}, out;
    if (!PyArg_ParseTuple(args, "OKnKO:draw", &set, &key, &number, &below, &into)) return NULL;
    if (set != Py_None && array_open(&words, set, 8, 0, 0) < 0) return NULL;
    if (array_open(&out, into, 8, 1, 0) < 0) {
        if (set != Py_None) array_close(&words);
        return NULL;
    }
    Py_ssize_t found = -2;
    if (below < (uint64_t)1 << 53 && (set == Py_None || below <= 64 * (uint64_t)words.length))
        found = draw(mix(key), number, below, (uint64_t *)words.data, out.length, (int64_t *)out.data);
    array_close(&out);
    if (set != Py_None) array_close(&words);
    if (found == -1) return PyErr_NoMemory();
    if (found < 0) return PyErr_Format(PyExc_ValueError, "numbers beyond the set");
    return PyLong_FromSsize_t(found);
}

static int ascending(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Random words whose low bits are replaced by the position, sorted. */
static PyObject *words_shuffle(PyObject *module, PyObject *args) {
    PyObject *object;
    unsigned long long seed;
    Array ids;
    if (!PyArg_ParseTuple(args, "OK:shuffle", &object, &seed)) return NULL;
    if (array_open(&ids, object, 8, 1, 0) < 0) return NULL;
    size_t length = (size_t)ids.length;
    uint64_t key = mix(seed), low = 0, *keys = malloc(16 * (length + 1));
    if (keys == NULL) {
        array_close(&ids);
        return PyErr_NoMemory();
    }
    while (length && low < length - 1) low = 2 * low + 1;
    for (size_t i = 0; i < length; i++) keys[i] = (mix(i ^ key) & ~low) | i;
    qsort(keys, length, sizeof *keys, ascending);
    int64_t *out = (int64_t *)ids.data, *before = (int64_t *)(keys + length);
    memcpy(before, out, 8 * length);
    for (size_t i = 0; i < length; i++) out[i] = before[keys[i] & low];
    free(keys);
    array_close(&ids);
    Py_RETURN_NONE;
}

/* The position of the n-th 1 of a word. */
static int nth(uint64_t word, int n) {
    for (; n; n--) word &= word - 1;
    return __builtin_ctzll(word);
}

static PyObject *words_select(PyObject *module, PyObject *args) {
    PyObject *set, *wanted;
    Pair pair;
    if (!PyArg_ParseTuple(args, "OO:select", &set, &wanted)) return NULL;
    if (pair_open(&pair, set, 0, wanted, 8, 1) < 0) return NULL;
    const uint64_t *words = (uint64_t *)pair.set.data;
    Py_ssize_t length = pair.set.length, count = pair.other.length;
    int64_t *out = (int64_t *)pair.other.data, total = 0;
    int64_t *ends = malloc(sizeof *ends * (size_t)(length + 1));
    if (ends == NULL) {
        pair_close(&pair);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < length; i++) ends[i] = total += __builtin_popcountll(words[i]);
    int inside = 1;
    for (Py_ssize_t i = 0; i < count && (inside = out[i] >= 0 && out[i] < total); i++) {
        int64_t rank = out[i];
        Py_ssize_t low = 0, high = length;
        while (low < high) { /* the first word that ends beyond the rank */
            Py_ssize_t middle = (low + high) / 2;
            if (ends[middle] > rank) high = middle;
            else low = middle + 1;
        }
        out[i] = 64 * (int64_t)low + nth(words[low], (int)(rank - (low ? ends[low - 1] : 0)));
    }
    free(ends);
    pair_close(&pair);
    if (!inside) return PyErr_Format(PyExc_IndexError, "a rank beyond the size of the set");
    Py_RETURN_NONE;
}

/* ---- readers ---- */

/* Counts readers of ids, up or down; the set has those that have any. */
static PyObject *count_readers(PyObject *args, const char *format, int up) {
    PyObject *counts, *set, *wanted;
    Pair pair;
    Array readers;
    if (!PyArg_ParseTuple(args, format, &counts, &set, &wanted)) return NULL;
    if (ids_open(&pair, set, 1, wanted) < 0) return NULL;
    if (array_open(&readers, counts, 4, 1, 0) < 0) {
        pair_close(&pair);
        return NULL;
    }
    uint64_t *words = (uint64_t *)pair.set.data;
    int32_t *count = (int32_t *)readers.data;
    int fits = 64 * pair.set.length <= readers.length;
    Py_ssize_t wrong = -1;
    for (Py_ssize_t i = 0; fits && i < pair.other.length; i++) {
        int64_t id = array_id(&pair.other, i);
        uint64_t bit = (uint64_t)1 << (id & 63);
        if (up) {
            count[id]++;
            words[id >> 6] |= bit;
        } else if (count[id] <= 0) {
            wrong = i;
            break;
        } else if (--count[id] == 0) {
            words[id >> 6] &= ~bit;
        }
    }
    array_close(&readers);
    pair_close(&pair);
    if (!fits) return PyErr_Format(PyExc_ValueError, "fewer counts than samples");
    if (wrong >= 0) return PyErr_Format(PyExc_ValueError, "one of them has no reader");
    Py_RETURN_NONE;
}

static PyObject *words_hold(PyObject *module, PyObject *args) {
    return count_readers(args, "OOO:hold", 1);
}

static PyObject *words_let_go(PyObject *module, PyObject *args) {
    return count_readers(args, "OOO:let_go", 0);
}

/* ---- keys ---- */

static PyObject *words_key(PyObject *module, PyObject *args) {
    Py_ssize_t count = PyTuple_Size(args);
    uint64_t state = (uint64_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t word = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(args, i));
        if (word == (uint64_t)-1 && PyErr_Occurred()) return NULL;
        state = mix(state ^ mix(word));
    }
    return PyLong_FromUnsignedLongLong(state);
}

PyMethodDef words_methods[] = {
    {"test", words_test, METH_VARARGS, "test(words, ids, out): for each id whether its bit is 1"},
    {"put", words_put, METH_VARARGS, "put(words, ids): set the bits of ids"},
    {"drop", words_drop, METH_VARARGS, "drop(words, ids): clear the bits of ids"},
    {"add_needs", words_add_needs, METH_VARARGS, "add_needs(words, ids, out): add 1 for each id whose bit is 1"},
    {"count", words_count, METH_O, "count(words): how many bits are 1"},
    {"members", words_members, METH_VARARGS, "members(words, out): all ids whose bit is 1, ascending"},
    {"shuffle", words_shuffle, METH_VARARGS, "shuffle(ids, key): put ids into a random order"},
    {"draw", words_draw, METH_VARARGS,
     "draw(words, key, number, below, out): the first different ones out of so many random numbers, in words if it "
     "is not None; returns how many there are"},
    {"select", words_select, METH_VARARGS, "select(words, ranks): the ids of ranks, in place"},
    {"hold", words_hold, METH_VARARGS, "hold(counts, words, ids): each id has one more reader"},
    {"let_go", words_let_go, METH_VARARGS, "let_go(counts, words, ids): each id has one reader less"},
    {"key", words_key, METH_VARARGS, "key(*words): one 64-bit key from integers"},
    {NULL, NULL, 0, NULL},
};
