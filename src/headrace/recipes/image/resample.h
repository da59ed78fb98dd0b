/* Resampling: one source row at a time becomes lanes, two rows of lanes become one output row.
 *
 * A lane is one channel of one output pixel. Horizontally resampled rows hold lanes as int16 with 7
 * fractional bits (0..32640); weights are Q15. Every step is (a * b + 2^14) >> 15, which NEON, SSE and plain
 * C compute alike, so results do not depend on the machine. */
#ifndef HEADRACE_RESAMPLE_H
#define HEADRACE_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

enum { GROUP = 8, WINDOW = 32, TAPS = 32 };
enum { DT_UINT8, DT_FLOAT32, DT_FLOAT16, DT_BFLOAT16 };
/* How pixels become fewer or more: between two of them, the nearest, or by a filter (filters.c). */
enum { BETWEEN, NEAREST, FILTER_LINEAR, FILTER_CUBIC, FILTER_LANCZOS };

/* What an output row looks like; equal for all jobs of a call. */
typedef struct {
    int out_h, out_w, channels, planar, dtype, method, dct_scaling, as_stored;
    float scale[3], bias[3];
    int64_t max_pixels;
} Spec;

/* Where each lane of a row comes from. */
typedef struct {
    int lanes;      /* lanes in use */
    int groups;     /* a multiple of 4; the last ones may be padding */
    int copy;       /* lanes are consecutive source bytes: no arithmetic is needed */
    int windowed;   /* every group of 8 lanes reads from 32 consecutive bytes of the row */
    int32_t *first; /* per lane: byte offset of its left tap, and of its right tap */
    int32_t *second;
    int16_t *weight; /* per lane: weight of the right tap */
    int32_t *base;   /* per group: byte offset of its window */
    uint8_t *taps;   /* per group: 8 left taps, 8 right taps, relative to the window, each after a
                        255 (which reads as 0): so a pixel is the upper byte of a 16-bit lane */
} Columns;

/* Scratch memory that only grows. */
typedef struct {
    void *data;
    size_t size;
} Buffer;

void *buffer_need(Buffer *buffer, size_t size);

/* One axis of a filter: for each output position its first source position, how many there are, and their weights. */
typedef struct {
    int32_t *first, *count;
    int16_t *weight;
    int stride, most, bits; /* weights of a position; the largest count; fractional bits */
    int low, high;    /* source positions touched: low <= p < high */
    Buffer memory, exact;
    Buffer rows; /* of the vertical axis: rows that are filtered horizontally */
    size_t row_bytes;
} Taps;

enum { FILTER_BLOCK = 32 }; /* filtered rows are padded to whole ones, and at least one more */
enum { FILTER_SLACK = 4 };  /* bytes that kernels read after the last tap of a pixel */

/* Where the lanes of a filtered row come from, for kernels that pick any bytes of a window of the row. A group of
 * lanes takes a few taps at a time from one window; how many of each, and how tables look, is the kernels' own. */
typedef struct {
    int groups, steps; /* windows of a group */
    int is_signed;     /* some weights are negative */
    int32_t *base;     /* byte offsets of windows */
    int32_t *start;    /* what sums begin with */
    uint8_t *index;    /* places in the window */
    uint8_t *weight;
    Buffer memory;
} Windows;

/* The byte at which a window of so many has to begin to hold the taps from..until of the lanes first..last, and to
 * lie within the row; -1: there is none. */
int32_t window_base(const Taps *taps, int first, int last, int from, int until, int x_offset, size_t row_bytes,
                    int window);

/* The kernels that differ between machines. */
typedef struct {
    const char *name;
    void (*across)(const uint8_t *row, const Columns *columns, int16_t *lanes);
    void (*down)(const int16_t *upper, const int16_t *lower, int16_t weight, uint8_t *out, int n);
    void (*split3)(const uint8_t *row, uint8_t *a, uint8_t *b, uint8_t *c, int n);
    void (*to_float32)(const uint8_t *row, const float *scale, const float *bias, float *out, int n);
    void (*to_bfloat16)(const uint8_t *row, const float *scale, const float *bias, uint16_t *out, int n);
    /* NULL: a table of the 256 values is faster than what the machine has */
    void (*to_float16)(const uint8_t *row, const float *scale, const float *bias, uint16_t *out, int n);
    /* as to_float32, for rows that are larger than what caches are for; NULL: there is no such way. What it wrote is
     * there for other threads after lanes_settle. */
    void (*stream_float32)(const uint8_t *row, const float *scale, const float *bias, float *out, int n);
    /* split3 and stream_float32 in one, of a scale and a bias per channel; NULL: there is no such way */
    void (*stream_planes)(const uint8_t *row, const float *scale, const float *bias, float *out, size_t plane, int n);
    /* Filters. Of a row of three channels, the pixels from..until; of the output a few bytes too many are written,
     * which belong to the next pixel or to the row's padding. NULL: there is only plain C. */
    void (*filter_across)(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, uint8_t *out);
    /* As filter_across, all pixels, up to a few bytes after the last; NULL: there is no such way. The first one makes
     * the tables for rows of so many bytes, and returns 0 where that cannot be done. */
    int (*filter_plan)(Windows *windows, const Taps *taps, int w, int x_offset, size_t row_bytes);
    void (*filter_windows)(const uint8_t *row, const Windows *windows, int bits, uint8_t *out);
    /* Row y lies at place y modulo `ring`. */
    void (*filter_down)(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                        int bits, uint8_t *out, int n);
} Lanes;

void filter_across_plain(const uint8_t *row, const Taps *taps, int x_offset, int source_channels, int channels,
                         int from, int until, uint8_t *restrict out);
void filter_down_plain(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                       int bits, uint8_t *out, int n);
#if defined(__aarch64__)
void filter_across_neon(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, uint8_t *out);
int has_dot(void); /* sums of four products of bytes */
int filter_plan_dot(Windows *windows, const Taps *taps, int w, int x_offset, size_t row_bytes);
void filter_windows_dot(const uint8_t *row, const Windows *windows, int bits, uint8_t *out);
void filter_down_dot(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                     int bits, uint8_t *out, int n);
#elif defined(__x86_64__)
void filter_across_sse(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, uint8_t *out);
void filter_across_avx(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, uint8_t *out);
void filter_down_avx(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                     int bits, uint8_t *out, int n);
int has_avx512(void); /* and those extensions of it that its kernels need */
void stream_planes_avx512(const uint8_t *row, const float *scale, const float *bias, float *out, size_t plane, int n);
int filter_plan_avx512(Windows *windows, const Taps *taps, int w, int x_offset, size_t row_bytes);
void filter_windows_avx512(const uint8_t *row, const Windows *windows, int bits, uint8_t *out);
void filter_down_avx512(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                        int bits, uint8_t *out, int n);
#endif

static inline void lanes_settle(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

extern const Lanes lanes_plain;
/* The best kernels for this machine (lanes_plain where there is nothing better). */
const Lanes *lanes_best(void);
/* Fills `found` with every set of kernels this machine can run; returns how many. */
int lanes_all(const Lanes **found, int room);
/* Compares a set of kernels with lanes_plain on made-up rows; 0, or the name of the first that differs. */
const char *lanes_differ(const Lanes *lanes);
/* Makes later calls of resample use the set of that name; 0, or -1 when this machine has none. */
int lanes_use(const char *name);

/* One axis: for each output position its two source positions and the weight of the second. */
typedef struct {
    int32_t *first, *second;
    int16_t *weight;
    int low, high; /* source positions touched: low <= p < high */
} Axis;

typedef struct {
    Buffer axes, columns, rows, tables;
    Axis x, y;
    Taps across, down;
    Windows windows;
    Columns cols;
    int16_t *slot[2];
    int slot_row[2];
    uint8_t *line, *planes;
    float *scale_row, *bias_row;
    uint16_t *half; /* float16 of each channel's 256 values */
    Spec spec;
    int ready, streams;
} Resampler;

/* Sets up for a spec; 0, or -1 when there is no memory. */
int resampler_prepare(Resampler *r, const Spec *spec);
void resampler_free(Resampler *r);

/* Positions along one axis: `box_at`/`box_size` maps onto `out` positions, clamped to [low, high). */
void axis_fill(Axis *axis, int out, double box_at, double box_size, int low, int high, int nearest);
/* Reorders an axis so that output comes out mirrored. */
void axis_flip(Axis *axis, int out);
/* Renames source positions p -> size - 1 - p, for sources that are stored mirrored. */
void axis_mirror(Axis *axis, int out, int size);

/* Turns the filled horizontal axis into taps per lane, for rows as `resample` describes them. */
void columns_fill(Resampler *r, int x_offset, size_t row_bytes, int source_channels);

/* Rows of the source, asked for in ascending order; may not return on error. */
typedef const uint8_t *(*RowReader)(void *context, int y);

/* Resamples one job into `out`. The reader's rows start at source column `x_offset`, are `row_bytes` long and
 * have `source_channels` channels. x and y must have been filled. `descending`: walk the output upwards, as
 * the source's rows come in the other order. */
int resample(Resampler *r, RowReader reader, void *context, int x_offset, size_t row_bytes,
             int source_channels, int descending, uint8_t *out);

/* Filters: as axis_fill, axis_flip and axis_mirror. taps_fill: 0, or -1 when there is no memory. */
int taps_fill(Taps *taps, int method, int out, double box_at, double box_size, int low, int high);
void taps_flip(Taps *taps, int out);
void taps_mirror(Taps *taps, int out, int size);
void taps_free(Taps *taps);
/* Makes room for rows; to be called when both axes are filled. 0, or -1 when there is no memory. */
int filter_ready(Resampler *r);
/* As resample, which calls it. */
typedef void (*FinishRow)(const Resampler *r, const uint8_t *row, int y, uint8_t *out);
void filter_rows(Resampler *r, const Lanes *lanes, RowReader reader, void *context, int x_offset, size_t row_bytes,
                 int source_channels, int descending, FinishRow finish, uint8_t *out);

size_t spec_row_bytes(const Spec *spec);
uint16_t half_from_float(float value);

#endif
