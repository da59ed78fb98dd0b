/* Tables of taps, and the walk over output rows. */
#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void *buffer_need(Buffer *buffer, size_t size) {
    if (buffer->size < size) {
        /* nothing in it is worth keeping, so no realloc */
        free(buffer->data);
        buffer->size = 0;
        size_t rounded = (size + size / 4 + 63) & ~(size_t)63;
        buffer->data = aligned_alloc(64, rounded);
        if (buffer->data == NULL) return NULL;
        buffer->size = rounded;
    }
    return buffer->data;
}

static size_t padded(size_t n) { return (n + 31) & ~(size_t)31; }

size_t spec_row_bytes(const Spec *spec) {
    static const size_t item[] = {1, 4, 2, 2};
    return (size_t)spec->out_h * (size_t)spec->out_w * (size_t)spec->channels * item[spec->dtype];
}

uint16_t half_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x47800000) /* too large for float16, infinite, or not a number */
        return (uint16_t)(sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (magnitude < 0x38800000) { /* subnormal: a multiple of 2^-24, rounded to even by the addition */
        float rest;
        memcpy(&rest, &magnitude, 4);
        rest += 0.5f;
        memcpy(&magnitude, &rest, 4);
        return (uint16_t)(sign | (magnitude - 0x3f000000));
    }
    magnitude += 0xfff + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}

static int prepare_tables(Resampler *r, const Spec *spec, size_t lanes) {
    r->scale_row = buffer_need(&r->tables, 2 * lanes * sizeof(float) + 3 * 256 * sizeof(uint16_t));
    if (r->scale_row == NULL) return -1;
    r->bias_row = r->scale_row + lanes;
    r->half = (uint16_t *)(r->bias_row + lanes);
    for (size_t i = 0; i < lanes; i++) {
        int c = spec->planar ? (int)(i / (size_t)spec->out_w) : (int)(i % (size_t)spec->channels);
        if (c >= spec->channels) c = 0; /* padding */
        r->scale_row[i] = spec->scale[c];
        r->bias_row[i] = spec->bias[c];
    }
    for (int c = 0; c < spec->channels; c++)
        for (int v = 0; v < 256; v++)
            r->half[256 * c + v] = half_from_float((float)v * spec->scale[c] + spec->bias[c]);
    return 0;
}

int resampler_prepare(Resampler *r, const Spec *spec) {
    if (r->ready && memcmp(&r->spec, spec, sizeof *spec) == 0) return 0;
    r->ready = 0;
    size_t w = padded((size_t)spec->out_w), h = padded((size_t)spec->out_h);
    size_t lanes = padded((size_t)spec->out_w * (size_t)spec->channels);

    int32_t *axes = buffer_need(&r->axes, (w + h) * 10);
    int32_t *columns = buffer_need(&r->columns, lanes * (4 + 4 + 1 + 2 + 4));
    int16_t *rows = buffer_need(&r->rows, 2 * lanes * sizeof(int16_t) + 2 * lanes);
    if (axes == NULL || columns == NULL || rows == NULL) return -1;
    r->x.first = axes;
    r->x.second = axes + w;
    r->y.first = axes + 2 * w;
    r->y.second = axes + 2 * w + h;
    r->x.weight = (int16_t *)(axes + 2 * w + 2 * h);
    r->y.weight = r->x.weight + w;
    r->cols.lanes = spec->out_w * spec->channels;
    r->cols.groups = (int)(lanes / GROUP);
    r->cols.first = columns;
    r->cols.second = columns + lanes;
    r->cols.base = columns + 2 * lanes;
    r->cols.weight = (int16_t *)(columns + 2 * lanes + lanes / 4);
    r->cols.taps = (uint8_t *)(r->cols.weight + lanes);
    r->slot[0] = rows;
    r->slot[1] = rows + lanes;
    r->line = (uint8_t *)(rows + 2 * lanes);
    r->planes = r->line + lanes;
    if (spec->dtype != DT_UINT8 && prepare_tables(r, spec, lanes) < 0) return -1;
    r->spec = *spec;
    r->ready = 1;
    return 0;
}

void resampler_free(Resampler *r) {
    free(r->axes.data);
    free(r->columns.data);
    free(r->rows.data);
    free(r->tables.data);
    taps_free(&r->across);
    taps_free(&r->down);
    free(r->windows.memory.data);
    memset(r, 0, sizeof *r);
}

void axis_fill(Axis *axis, int out, double box_at, double box_size, int low, int high, int nearest) {
    double step = box_size / out, last = high - 1;
    for (int i = 0; i < out; i++) {
        double at = box_at + (i + 0.5) * step - (nearest ? 0.0 : 0.5);
        /* clamped before it becomes an integer, so no box can overflow one */
        at = at < low ? low : at > last ? last : at;
        int p = (int)at;
        int weight = nearest ? 0 : (int)((at - p) * 32768.0 + 0.5);
        if (weight > 32767) weight = 32767;
        axis->first[i] = p;
        axis->second[i] = weight ? p + 1 : p;
        axis->weight[i] = (int16_t)weight;
    }
    axis->low = axis->first[0];
    axis->high = axis->second[out - 1] + 1;
}

void axis_flip(Axis *axis, int out) {
    for (int i = 0, j = out - 1; i < j; i++, j--) {
        int32_t a = axis->first[i], b = axis->second[i];
        int16_t w = axis->weight[i];
        axis->first[i] = axis->first[j];
        axis->second[i] = axis->second[j];
        axis->weight[i] = axis->weight[j];
        axis->first[j] = a;
        axis->second[j] = b;
        axis->weight[j] = w;
    }
}

void axis_mirror(Axis *axis, int out, int size) {
    for (int i = 0; i < out; i++) {
        axis->first[i] = size - 1 - axis->first[i];
        axis->second[i] = size - 1 - axis->second[i];
    }
    int low = size - axis->high;
    axis->high = size - axis->low;
    axis->low = low;
}

/* Turns the horizontal axis into taps per lane. */
void columns_fill(Resampler *r, int x_offset, size_t row_bytes, int source_channels) {
    Columns *c = &r->cols;
    int channels = r->spec.channels, n = 0;
    c->copy = source_channels == channels;
    for (int i = 0; i < r->spec.out_w; i++) {
        int first = (r->x.first[i] - x_offset) * source_channels;
        int second = (r->x.second[i] - x_offset) * source_channels;
        int16_t weight = r->x.weight[i];
        if (weight != 0 || r->x.first[i] != r->x.first[0] + i) c->copy = 0;
        for (int k = 0; k < channels; k++, n++) {
            int of = source_channels == 1 ? 0 : k;
            c->first[n] = first + of;
            c->second[n] = second + of;
            c->weight[n] = weight;
        }
    }
    for (; n < c->groups * GROUP; n++) {
        c->first[n] = c->first[n - 1];
        c->second[n] = c->second[n - 1];
        c->weight[n] = 0;
    }
    c->windowed = row_bytes >= WINDOW;
    if (!c->windowed) return;
    int32_t end = (int32_t)row_bytes - WINDOW;
    for (int g = 0; g < c->groups; g++) {
        const int32_t *first = c->first + GROUP * g, *second = c->second + GROUP * g;
        int32_t base = first[0], top = first[0];
        for (int k = 0; k < GROUP; k++) {
            int32_t small = first[k] < second[k] ? first[k] : second[k];
            int32_t large = first[k] < second[k] ? second[k] : first[k];
            base = small < base ? small : base;
            top = large > top ? large : top;
        }
        base = (base < end ? base : end) & ~3; /* inside the row; some machines load slowly from odd places */
        if (top - base >= WINDOW) {
            c->windowed = 0;
            return;
        }
        c->base[g] = base;
        uint8_t *taps = c->taps + TAPS * g;
        for (int k = 0; k < GROUP; k++) {
            /* 16-bit lanes, the pixel in the upper byte; a tap outside of the window reads as 0 */
            taps[2 * k] = taps[16 + 2 * k] = 255;
            taps[2 * k + 1] = (uint8_t)(first[k] - base);
            taps[16 + 2 * k + 1] = (uint8_t)(second[k] - base);
        }
    }
}

static void to_half(const Resampler *r, const uint8_t *row, uint16_t *out, int n, int channel) {
    if (channel >= 0 || r->spec.channels == 1) {
        const uint16_t *half = r->half + 256 * (channel > 0 ? channel : 0);
        for (int i = 0; i < n; i++) out[i] = half[row[i]];
        return;
    }
    for (int i = 0; i < n; i += 3) {
        out[i] = r->half[row[i]];
        out[i + 1] = r->half[256 + row[i + 1]];
        out[i + 2] = r->half[512 + row[i + 2]];
    }
}

static void convert(const Resampler *r, const Lanes *lanes, const uint8_t *row, uint8_t *out, size_t at,
                    int n, int channel) {
    const float *scale = r->scale_row, *bias = r->bias_row;
    if (channel > 0) {
        scale += (size_t)channel * (size_t)r->spec.out_w;
        bias += (size_t)channel * (size_t)r->spec.out_w;
    }
    switch (r->spec.dtype) {
    case DT_UINT8: memcpy(out + at, row, (size_t)n); break;
    case DT_FLOAT32:
        (r->streams ? lanes->stream_float32 : lanes->to_float32)(row, scale, bias, (float *)out + at, n);
        break;
    case DT_BFLOAT16: lanes->to_bfloat16(row, scale, bias, (uint16_t *)out + at, n); break;
    default:
        if (lanes->to_float16) lanes->to_float16(row, scale, bias, (uint16_t *)out + at, n);
        else to_half(r, row, (uint16_t *)out + at, n, channel);
    }
}

/* Writes one finished row of pixels in the spec's layout and dtype. */
static void finish(const Resampler *r, const Lanes *lanes, const uint8_t *row, int y, uint8_t *out) {
    int w = r->spec.out_w, n = r->cols.lanes;
    if (r->spec.channels == 1 || !r->spec.planar) {
        convert(r, lanes, row, out, (size_t)y * (size_t)n, n, -1);
        return;
    }
    size_t plane = (size_t)w * (size_t)r->spec.out_h, at = (size_t)y * (size_t)w;
    if (r->spec.dtype == DT_UINT8) {
        lanes->split3(row, out + at, out + plane + at, out + 2 * plane + at, w);
        return;
    }
    if (r->streams && lanes->stream_planes != NULL) {
        lanes->stream_planes(row, r->spec.scale, r->spec.bias, (float *)out + at, plane, w);
        return;
    }
    lanes->split3(row, r->planes, r->planes + w, r->planes + 2 * w, w);
    for (int c = 0; c < 3; c++) convert(r, lanes, r->planes + c * w, out, (size_t)c * plane + at, w, c);
}

static const int16_t *lanes_of(Resampler *r, const Lanes *lanes, RowReader reader, void *context, int row,
                               int keep) {
    if (r->slot_row[0] == row) return r->slot[0];
    if (r->slot_row[1] == row) return r->slot[1];
    int free_slot = r->slot_row[0] == keep ? 1 : 0;
    lanes->across(reader(context, row), &r->cols, r->slot[free_slot]);
    r->slot_row[free_slot] = row;
    return r->slot[free_slot];
}

enum { STREAMED = 256 << 10 }; /* a batch of rows of so many bytes is not in a cache when it is used */

static const Lanes *chosen;

int lanes_use(const char *name) {
    const Lanes *found[8];
    for (int i = lanes_all(found, 8) - 1; i >= 0; i--)
        if (strcmp(found[i]->name, name) == 0) {
            chosen = found[i];
            return 0;
        }
    return -1;
}

static void finish_best(const Resampler *r, const uint8_t *row, int y, uint8_t *out) {
    finish(r, chosen, row, y, out);
}

int resample(Resampler *r, RowReader reader, void *context, int x_offset, size_t row_bytes,
             int source_channels, int descending, uint8_t *out) {
    if (chosen == NULL) chosen = lanes_best(); /* every thread finds the same, so a race is harmless */
    const Lanes *lanes = chosen;
    int h = r->spec.out_h, n = r->cols.lanes;
    r->streams = lanes->stream_float32 != NULL && r->spec.dtype == DT_FLOAT32 && spec_row_bytes(&r->spec) >= STREAMED;
    if (r->spec.method >= FILTER_LINEAR) {
        filter_rows(r, lanes, reader, context, x_offset, row_bytes, source_channels, descending, finish_best, out);
        lanes_settle();
        return 0;
    }
    int direct = r->spec.dtype == DT_UINT8 && (!r->spec.planar || r->spec.channels == 1);
    columns_fill(r, x_offset, row_bytes, source_channels);
    r->slot_row[0] = r->slot_row[1] = -1;
    for (int i = 0; i < h; i++) {
        int y = descending ? h - 1 - i : i;
        int first = r->y.first[y], second = r->y.second[y];
        uint8_t *line = direct ? out + (size_t)y * (size_t)n : r->line;
        if (r->cols.copy && first == second) {
            const uint8_t *pixels = reader(context, first) + r->cols.first[0];
            finish(r, lanes, pixels, y, out);
            continue;
        }
        /* the reader only moves forward, so the row that comes first in the source is asked for first */
        const int16_t *upper, *lower;
        if (first <= second) {
            upper = lanes_of(r, lanes, reader, context, first, second);
            lower = lanes_of(r, lanes, reader, context, second, first);
        } else {
            lower = lanes_of(r, lanes, reader, context, second, first);
            upper = lanes_of(r, lanes, reader, context, first, second);
        }
        lanes->down(upper, lower, r->y.weight[y], line, n);
        if (!direct) finish(r, lanes, line, y, out);
    }
    lanes_settle();
    return 0;
}
