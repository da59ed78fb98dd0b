/* Rows of a batch blended with the row before them, in place. The loops are left to the compiler's vectoriser. */
#include <math.h>
#include <string.h>

#include "blend.h"

enum { AS_UINT8, AS_FLOAT32, AS_FLOAT16, AS_BFLOAT16, AS_FLOAT64 };
static const size_t SIZES[] = {1, 4, 2, 2, 8};

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Choices are made by masks: branches would keep the loop from being vectorised. */
static inline uint32_t choose(uint32_t which, uint32_t yes, uint32_t no) {
    uint32_t mask = 0 - which;
    return (yes & mask) | (no & ~mask);
}

static inline float from_half(uint16_t half) {
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13;
    uint32_t bits = bits_of(float_of(rest) * 0x1p112f); /* exponents of halves start 112 lower */
    bits |= choose(rest >= 0x0f800000, 0x7f800000, 0);
    return float_of(bits | (uint32_t)(half & 0x8000) << 16);
}

static inline uint16_t to_half(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000; /* the sum rounds where a half's digits end */
    uint32_t large = choose(size > 0x7f800000, 0x7e00, 0x7c00);
    return (uint16_t)(sign | choose(size >= 0x47800000, large, choose(size < 0x38800000, small, normal)));
}

static void blend_uint8(uint8_t *restrict row, const uint8_t *restrict other, size_t n, double weight) {
    uint32_t mine = (uint32_t)lrint(weight * 65536), rest = 65536 - mine;
    for (size_t i = 0; i < n; i++) row[i] = (uint8_t)((row[i] * mine + other[i] * rest + 32768) >> 16);
}

static void blend_float32(float *restrict row, const float *restrict other, size_t n, double weight) {
    float mine = (float)weight, rest = (float)(1 - weight);
    for (size_t i = 0; i < n; i++) row[i] = row[i] * mine + other[i] * rest;
}

static void blend_float64(double *restrict row, const double *restrict other, size_t n, double weight) {
    double rest = 1 - weight;
    for (size_t i = 0; i < n; i++) row[i] = row[i] * weight + other[i] * rest;
}

static void blend_float16(uint16_t *restrict row, const uint16_t *restrict other, size_t n, double weight) {
    float mine = (float)weight, rest = (float)(1 - weight);
    for (size_t i = 0; i < n; i++) row[i] = to_half(from_half(row[i]) * mine + from_half(other[i]) * rest);
}

static void blend_bfloat16(uint16_t *restrict row, const uint16_t *restrict other, size_t n, double weight) {
    float mine = (float)weight, rest = (float)(1 - weight);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(float_of((uint32_t)row[i] << 16) * mine + float_of((uint32_t)other[i] << 16) * rest);
        row[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

static void blend_row(void *row, const void *other, size_t n, int dtype, double weight) {
    if (dtype == AS_UINT8) blend_uint8(row, other, n, weight);
    else if (dtype == AS_FLOAT32) blend_float32(row, other, n, weight);
    else if (dtype == AS_FLOAT16) blend_float16(row, other, n, weight);
    else if (dtype == AS_BFLOAT16) blend_bfloat16(row, other, n, weight);
    else blend_float64(row, other, n, weight);
}

PyObject *blend_rows(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer rows, before;
    int dtype;
    double weight;
    if (!PyArg_ParseTuple(args, "w*y*id:blend_rows", &rows, &before, &dtype, &weight)) return NULL;
    PyObject *result = NULL;
    size_t size = (size_t)before.len;
    if (dtype < AS_UINT8 || dtype > AS_FLOAT64 || !(weight >= 0 && weight <= 1) || size == 0 ||
        size % SIZES[dtype] || (size_t)rows.len % size) {
        PyErr_SetString(PyExc_ValueError, "rows, dtype or weight are out of range");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    /* from the last row to the first, so that each finds the one before it as it was */
    for (size_t at = (size_t)rows.len; at > 0; at -= size) {
        uint8_t *row = (uint8_t *)rows.buf + at - size;
        blend_row(row, at > size ? row - size : (uint8_t *)before.buf, size / SIZES[dtype], dtype, weight);
    }
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&rows);
    PyBuffer_Release(&before);
    return result;
}
