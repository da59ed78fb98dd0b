/* Every set of kernels against plain C, on rows of many widths, steps and channel counts. */
#include <stdlib.h>
#include <string.h>

#include "resample.h"

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static const char *differ_at(const Lanes *lanes, Resampler *r, int width, int channels, int out_w,
                             double box_at, double box_size, int flip, uint32_t *state) {
    enum { ROOM = 4096 };
    static __thread uint8_t row[ROOM], bytes[2][ROOM];
    static __thread int16_t wide[4][ROOM];
    static __thread float scale[ROOM], bias[ROOM], real[2][ROOM];
    int n = out_w * channels;
    Spec spec;
    memset(&spec, 0, sizeof spec);
    spec.out_h = 1;
    spec.out_w = out_w;
    spec.channels = channels;
    if (resampler_prepare(r, &spec) < 0) return "out of memory";
    axis_fill(&r->x, out_w, box_at, box_size, 0, width, 0);
    if (flip) axis_flip(&r->x, out_w);
    columns_fill(r, 0, (size_t)(width * channels), channels);
    for (int i = 0; i < width * channels; i++) row[i] = (uint8_t)(next_random(state) >> 24);
    for (int k = 0; k < 2; k++) {
        lanes_plain.across(row, &r->cols, wide[k]);
        lanes->across(row, &r->cols, wide[2 + k]);
        if (memcmp(wide[k], wide[2 + k], (size_t)n * sizeof(int16_t)) != 0) return "across";
        for (int i = 0; i < width * channels; i++) row[i] = next_random(state) >> 31 ? 255 : 0;
    }
    int16_t weight = (int16_t)(next_random(state) >> 17);
    lanes_plain.down(wide[0], wide[1], weight, bytes[0], n);
    lanes->down(wide[0], wide[1], weight, bytes[1], n);
    if (memcmp(bytes[0], bytes[1], (size_t)n) != 0) return "down";
    for (int i = 0; i < n; i++) {
        scale[i] = (float)(1 + i % 3) / 255.0f / 0.226f;
        bias[i] = -0.456f * (float)(1 + i % 3);
    }
    lanes_plain.to_float32(bytes[0], scale, bias, real[0], n);
    lanes->to_float32(bytes[0], scale, bias, real[1], n);
    if (memcmp(real[0], real[1], (size_t)n * sizeof(float)) != 0) return "to_float32";
    if (lanes->stream_float32) {
        int off = n > 3 ? (int)(next_random(state) >> 30) : 0; /* rows begin where they like */
        memset(real[1], 0, sizeof real[1]);
        lanes->stream_float32(bytes[0] + off, scale + off, bias + off, real[1] + off, n - off);
        lanes_settle();
        if (memcmp(real[0] + off, real[1] + off, (size_t)(n - off) * sizeof(float)) != 0) return "stream_float32";
    }
    lanes_plain.to_bfloat16(bytes[0], scale, bias, (uint16_t *)wide[2], n);
    lanes->to_bfloat16(bytes[0], scale, bias, (uint16_t *)wide[3], n);
    if (memcmp(wide[2], wide[3], (size_t)n * sizeof(int16_t)) != 0) return "to_bfloat16";
    if (lanes->to_float16) {
        lanes->to_float16(bytes[0], scale, bias, (uint16_t *)wide[2], n);
        for (int i = 0; i < n; i++)
            if (((uint16_t *)wide[2])[i] != half_from_float((float)bytes[0][i] * scale[i] + bias[i]))
                return "to_float16";
    }
    if (channels != 3) return NULL;
    uint8_t *a = (uint8_t *)wide[2], *b = (uint8_t *)wide[3];
    lanes_plain.split3(bytes[0], a, a + out_w, a + 2 * out_w, out_w);
    lanes->split3(bytes[0], b, b + out_w, b + 2 * out_w, out_w);
    if (memcmp(a, b, (size_t)n) != 0) return "split3";
    if (lanes->stream_planes) {
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < out_w; i++)
                real[0][c * out_w + i] = (float)a[c * out_w + i] * scale[c] + bias[c];
        lanes->stream_planes(bytes[0], scale, bias, real[1], (size_t)out_w, out_w);
        lanes_settle();
        if (memcmp(real[0], real[1], (size_t)n * sizeof(float)) != 0) return "stream_planes";
    }
    return NULL;
}

/* ---- filters: whole images of a few rows ---- */

enum { HEIGHT = 40, OUT_H = 12 };

typedef struct {
    const uint8_t *pixels;
    size_t stride;
} Image;

static const uint8_t *image_row(void *context, int y) {
    const Image *image = context;
    return image->pixels + (size_t)y * image->stride;
}

static void keep_row(const Resampler *r, const uint8_t *row, int y, uint8_t *out) {
    memcpy(out + (size_t)y * (size_t)r->cols.lanes, row, (size_t)r->cols.lanes);
}

static const char *filters_differ_at(const Lanes *lanes, Resampler *r, int method, int width, int channels, int out_w,
                                     double box_at, double box_size, int flip, uint32_t *state) {
    size_t stride = (size_t)width * (size_t)channels, size = (size_t)out_w * (size_t)channels * OUT_H;
    const char *found = NULL;
    Spec spec;
    memset(&spec, 0, sizeof spec);
    spec.out_h = OUT_H;
    spec.out_w = out_w;
    spec.channels = channels;
    if (resampler_prepare(r, &spec) < 0) return "memory";
    if (taps_fill(&r->across, method, out_w, box_at, box_size, 0, width) < 0) return "memory";
    if (taps_fill(&r->down, method, OUT_H, 0, 1 + (next_random(state) >> 16) % (HEIGHT - 1), 0, HEIGHT) < 0)
        return "memory";
    if (flip) taps_flip(&r->across, out_w);
    /* (as long as it has to be and no longer: what reads or writes beyond is found where memory is watched) */
    uint8_t *pixels = malloc(stride * HEIGHT), *out = malloc(2 * size);
    if (pixels == NULL || out == NULL || filter_ready(r) < 0) {
        found = "memory";
    } else {
        int extreme = next_random(state) >> 31;
        for (size_t i = 0; i < stride * HEIGHT; i++)
            pixels[i] = (uint8_t)(extreme ? (next_random(state) >> 31) * 255 : next_random(state) >> 24);
        Image image = {pixels, stride};
        filter_rows(r, &lanes_plain, image_row, &image, 0, stride, channels, 0, keep_row, out);
        filter_rows(r, lanes, image_row, &image, 0, stride, channels, 0, keep_row, out + size);
        if (memcmp(out, out + size, size) != 0) found = "filters";
    }
    free(pixels);
    free(out);
    return found;
}

const char *lanes_differ(const Lanes *lanes) {
    Resampler r;
    uint32_t state = 1;
    const char *found = NULL;
    memset(&r, 0, sizeof r);
    for (int trial = 0; trial < 600 && found == NULL; trial++) {
        int channels = trial % 2 ? 3 : 1;
        int width = 1 + (int)(next_random(&state) >> 16) % (trial % 5 ? 600 : 14);
        int out_w = 1 + (int)(next_random(&state) >> 16) % 300;
        double size = 0.5 + (next_random(&state) >> 16) / 65536.0 * width;
        double at = (next_random(&state) >> 16) / 65536.0 * (width - size) - 2.0;
        found = differ_at(lanes, &r, width, channels, out_w, at, size, trial % 3 == 0, &state);
        if (found == NULL && trial % 2 == 1)
            found = filters_differ_at(lanes, &r, FILTER_LINEAR + trial % 3, width, channels, out_w, at, size,
                                      trial % 4 == 1, &state);
    }
    resampler_free(&r);
    return found;
}
