/* Resampling with filters that widen as images shrink, as Pillow does it.
 *
 * Across first, rounded to bytes, then down. Weights are 16 bits wide, with as many fractional bits as the largest
 * of an axis leaves room for; they add up to one exactly. Pillow's have 22 bits: a value in a thousand, half way
 * between two levels, is rounded the other way. Only the rows that the next output row needs are kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resample.h"

static const double half_widths[] = {[FILTER_LINEAR] = 1.0, [FILTER_CUBIC] = 2.0, [FILTER_LANCZOS] = 3.0};

static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= 3.14159265358979323846;
    return sin(x) / x;
}

static double weight_at(int method, double x) {
    x = fabs(x);
    if (x >= half_widths[method]) return 0.0;
    switch (method) {
    case FILTER_LINEAR: return 1.0 - x;
    case FILTER_CUBIC: { /* Keys' cubic with a = -1/2 */
        const double a = -0.5;
        if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
        return (((x - 5) * x + 8) * x - 4) * a;
    }
    default: return sinc(x) * sinc(x / 3);
    }
}

/* Fractional bits with which no weight outgrows 16 bits, with some room for what rounding leaves over, and no sum
 * outgrows 32. */
static int bits_for(double largest) {
    int bits = 20;
    while (bits > 0 && largest * (double)(1 << bits) > 32000.0) bits--;
    return bits;
}

/* Rounds weights that add up to one so that they still do: the largest takes what is left over. */
static void round_weights(const double *exact, int count, int bits, int16_t *weight) {
    int largest = 0, sum = 0;
    for (int k = 0; k < count; k++) {
        weight[k] = (int16_t)lrint(exact[k] * (double)(1 << bits));
        sum += weight[k];
        if (exact[k] > exact[largest]) largest = k;
    }
    weight[largest] = (int16_t)(weight[largest] + (1 << bits) - sum);
}

int taps_fill(Taps *taps, int method, int out, double box_at, double box_size, int low, int high) {
    double step = box_size / out, stretch = step < 1.0 ? 1.0 : step;
    double reach = half_widths[method] * stretch, largest = 0.0;
    if (!(reach < (1 << 28))) return -1;
    size_t most = (size_t)ceil(reach) * 2 + 1, n = (size_t)out;
    if (most > (size_t)(high - low)) most = (size_t)(high - low);
    double *exact = buffer_need(&taps->exact, n * most * sizeof(double));
    int32_t *memory = buffer_need(&taps->memory, 2 * n * sizeof(int32_t) + n * (most + 3) * sizeof(int16_t));
    if (exact == NULL || memory == NULL) return -1;
    taps->first = memory;
    taps->count = memory + n;
    taps->weight = (int16_t *)(memory + 2 * n);
    taps->most = 1;
    taps->low = high;
    taps->high = low;
    for (int i = 0; i < out; i++) {
        /* counted from the clamp's edge, as if the clamp were all of the image */
        double centre = box_at - low + (i + 0.5) * step, sum = 0.0, *weight = exact + (size_t)i * most;
        double begin = centre - reach + 0.5, end = centre + reach + 0.5;
        /* a box may lie beside its clamp: then the nearest pixel is all there is */
        int from = begin < 0 ? 0 : begin > high - low - 1 ? high - low - 1 : (int)begin;
        int until = end > high - low ? high - low : end < from + 1 ? from + 1 : (int)end;
        int count = until - from;
        for (int k = 0; k < count; k++)
            sum += weight[k] = weight_at(method, (k + from - centre + 0.5) * (1.0 / stretch));
        for (int k = 0; k < count; k++) {
            weight[k] = fabs(sum) > 1e-9 ? weight[k] / sum : k == 0;
            if (fabs(weight[k]) > largest) largest = fabs(weight[k]);
        }
        taps->first[i] = low + from;
        taps->count[i] = count;
        if (count > taps->most) taps->most = count;
        if (low + from < taps->low) taps->low = low + from;
        if (low + until > taps->high) taps->high = low + until;
    }
    taps->bits = bits_for(largest);
    size_t stride = ((size_t)taps->most + 3) & ~(size_t)3; /* kernels take four at a time; the rest are 0 */
    taps->stride = (int)stride;
    memset(taps->weight, 0, n * stride * sizeof(int16_t));
    for (size_t i = 0; i < n; i++)
        round_weights(exact + i * most, taps->count[i], taps->bits, taps->weight + i * stride);
    return 0;
}

#define SWAP(type, a, b)                                                                                     \
    do {                                                                                                     \
        type other = a;                                                                                      \
        a = b;                                                                                               \
        b = other;                                                                                           \
    } while (0)

void taps_flip(Taps *taps, int out) {
    for (int i = 0, j = out - 1; i < j; i++, j--) {
        int16_t *one = taps->weight + (size_t)i * (size_t)taps->stride;
        int16_t *two = taps->weight + (size_t)j * (size_t)taps->stride;
        SWAP(int32_t, taps->first[i], taps->first[j]);
        SWAP(int32_t, taps->count[i], taps->count[j]);
        for (int k = 0; k < taps->stride; k++) SWAP(int16_t, one[k], two[k]);
    }
}

void taps_mirror(Taps *taps, int out, int size) {
    for (int i = 0; i < out; i++) {
        int16_t *weight = taps->weight + (size_t)i * (size_t)taps->stride;
        taps->first[i] = size - taps->first[i] - taps->count[i];
        for (int k = 0, l = taps->count[i] - 1; k < l; k++, l--) SWAP(int16_t, weight[k], weight[l]);
    }
    int low = size - taps->high;
    taps->high = size - taps->low;
    taps->low = low;
}

void taps_free(Taps *taps) {
    free(taps->memory.data);
    free(taps->exact.data);
    free(taps->rows.data);
}

/* Whether pixel i may be left to filter_across, in rows of so many bytes. */
static int is_inside(const Taps *taps, int i, int x_offset, size_t row_bytes) {
    return (size_t)(taps->first[i] - x_offset + taps->stride) * 3 + FILTER_SLACK <= row_bytes;
}

int32_t window_base(const Taps *taps, int first, int last, int from, int until, int x_offset, size_t row_bytes,
                    int window) {
    int left = INT32_MAX, right = 0; /* source pixels */
    if (row_bytes < (size_t)window) return -1;
    for (int i = first / 3; i <= last / 3; i++) {
        int count = taps->count[i] < until ? taps->count[i] : until, at = taps->first[i] - x_offset;
        if (count <= from) continue;
        left = at + from < left ? at + from : left;
        right = at + count > right ? at + count : right;
    }
    if (right == 0) return 0; /* nobody has so many taps */
    int32_t end = (int32_t)row_bytes - window, base = 3 * left < end ? 3 * left : end;
    return 3 * right - base > window ? -1 : base;
}

int filter_ready(Resampler *r) {
    r->down.row_bytes = ((size_t)r->cols.lanes + 2 * FILTER_BLOCK) & ~(size_t)(FILTER_BLOCK - 1);
    return buffer_need(&r->down.rows, (size_t)r->down.most * r->down.row_bytes) == NULL ? -1 : 0;
}

void filter_rows(Resampler *r, const Lanes *lanes, RowReader reader, void *context, int x_offset, size_t row_bytes,
                 int source_channels, int descending, FinishRow finish, uint8_t *out) {
    uint8_t *rows = r->down.rows.data;
    size_t stride = r->down.row_bytes;
    int ring = r->down.most, h = r->spec.out_h, w = r->spec.out_w, channels = r->spec.channels;
    int next = r->down.low, from = 0, until = 0; /* pixels from..until are left to filter_across */
    int windowed = source_channels == 3 && lanes->filter_plan != NULL &&
                   lanes->filter_plan(&r->windows, &r->across, w, x_offset, row_bytes);
    if (source_channels == 3 && lanes->filter_across != NULL && !windowed) {
        /* those at the end of the source are the last ones or, flipped, the first */
        while (from < w && !is_inside(&r->across, from, x_offset, row_bytes)) from++;
        until = from;
        while (until < w && is_inside(&r->across, until, x_offset, row_bytes)) until++;
    }
    for (int i = 0; i < h; i++) {
        int y = descending ? h - 1 - i : i;
        int first = r->down.first[y], count = r->down.count[y];
        if (next < first) next = first;
        for (; next < first + count; next++) {
            const uint8_t *row = reader(context, next);
            uint8_t *filtered = rows + (size_t)(next % ring) * stride;
            if (windowed) {
                lanes->filter_windows(row, &r->windows, r->across.bits, filtered);
                continue;
            }
            if (from < until) lanes->filter_across(row, &r->across, x_offset, from, until, filtered);
            filter_across_plain(row, &r->across, x_offset, source_channels, channels, 0, from, filtered);
            filter_across_plain(row, &r->across, x_offset, source_channels, channels, until, w, filtered);
        }
        const int16_t *weight = r->down.weight + (size_t)y * (size_t)r->down.stride;
        lanes->filter_down(rows, stride, ring, first, count, weight, r->down.bits, r->line, r->cols.lanes);
        finish(r, r->line, y, out);
    }
}
