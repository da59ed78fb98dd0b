/* From a job to taps, to the region of the stored image that they touch, to a row. */
#include "jobs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void scratch_free(Scratch *scratch) {
    decoder_free(scratch->decoder);
    resampler_free(&scratch->resampler);
    free(scratch->stored.data);
    free(scratch->turned.data);
    memset(scratch, 0, sizeof *scratch);
}

/* `as_stored`: whatever EXIF says of how to turn it, the image is shown as it is stored. */
static int open_jpeg(Scratch *scratch, const Source *source, int64_t max_pixels, int as_stored, Header *header) {
    header_read(source->bytes, source->size, header);
    if (as_stored) {
        header->orientation = 1;
        header->width = header->stored_width;
        header->height = header->stored_height;
    }
    if (header_too_short(header, source->size)) return STATUS_TRUNCATED;
    if (header->kind != 0) return STATUS_NOT_NATIVE;
    if ((int64_t)header->width * header->height > max_pixels) return STATUS_TOO_LARGE;
    if (scratch->decoder == NULL) scratch->decoder = decoder_new();
    return scratch->decoder == NULL ? STATUS_NO_MEMORY : STATUS_OK;
}

static int scale_is_known(int scale) { return scale == 1 || scale == 2 || scale == 4 || scale == 8; }

/* From here on, the image is what is left of it at 1/scale of its size. */
static void scale_header(Header *header, int scale) {
    header->width = (header->width + scale - 1) / scale;
    header->height = (header->height + scale - 1) / scale;
}

/* ---- whole regions ---- */

typedef struct {
    uint8_t *out;
    size_t stride;
    int rows;
} Rows;

static void take_rows(void *context, Decoder *decoder) {
    Rows *rows = context;
    for (int y = 0; y < rows->rows; y++) decoder_row_into(decoder, rows->out + (size_t)y * rows->stride);
}

static int decode_region(Scratch *scratch, const Source *source, const Header *header, const Region *region,
                         uint8_t *out) {
    Rows rows = {out, (size_t)(region->x1 - region->x0) * (size_t)region->channels, region->y1 - region->y0};
    return decoder_run(scratch->decoder, source->bytes, source->size, header, region, take_rows, &rows);
}

/* Writes `width` x `height` pixels that lie `dx` and `dy` bytes apart in the source. */
static void copy_strided(const uint8_t *from, ptrdiff_t dx, ptrdiff_t dy, int channels, int width, int height,
                         uint8_t *out) {
    enum { BLOCK = 16 }; /* rows at a time, so that a transposition reuses the cache lines it reads */
    size_t stride = (size_t)width * (size_t)channels;
    for (int top = 0; top < height; top += BLOCK) {
        int end = top + BLOCK < height ? top + BLOCK : height;
        for (int x = 0; x < width; x++)
            for (int y = top; y < end; y++) {
                const uint8_t *p = from + x * dx + y * dy;
                uint8_t *q = out + (size_t)y * stride + (size_t)x * (size_t)channels;
                for (int c = 0; c < channels; c++) q[c] = p[c];
            }
    }
}

int decode_part(Scratch *scratch, const Source *source, int x, int y, int width, int height, int channels,
                int scale, int whole, int64_t max_pixels, int as_stored, uint8_t *out) {
    Header header;
    if (!scale_is_known(scale)) return STATUS_BAD_JOB;
    int status = open_jpeg(scratch, source, max_pixels, as_stored, &header);
    if (status != STATUS_OK) return status;
    scale_header(&header, scale);
    if (x < 0 || y < 0 || width < 1 || height < 1 || width > header.width - x || height > header.height - y)
        return STATUS_MISMATCH;
    if (whole && (width != header.width || height != header.height)) return STATUS_MISMATCH;
    int o = header.orientation, turned = orientation_transposes(o);
    int mirror_x = orientation_mirrors_x(o), mirror_y = orientation_mirrors_y(o);
    int px = mirror_x ? header.width - x - width : x, py = mirror_y ? header.height - y - height : y;
    Region region = {scale, channels, px, py, px + width, py + height};
    if (turned) region = (Region){scale, channels, py, px, py + height, px + width};
    if (o == 1) return decode_region(scratch, source, &header, &region, out);

    uint8_t *stored = buffer_need(&scratch->stored, (size_t)width * (size_t)height * (size_t)channels);
    if (stored == NULL) return STATUS_NO_MEMORY;
    status = decode_region(scratch, source, &header, &region, stored);
    if (status != STATUS_OK) return status;
    ptrdiff_t row = (ptrdiff_t)(region.x1 - region.x0) * channels;
    ptrdiff_t dx = turned ? row : channels, dy = turned ? channels : row;
    const uint8_t *from = stored + (mirror_x ? (width - 1) * dx : 0) + (mirror_y ? (height - 1) * dy : 0);
    copy_strided(from, mirror_x ? -dx : dx, mirror_y ? -dy : dy, channels, width, height, out);
    return STATUS_OK;
}

/* ---- rows ---- */

typedef struct {
    const uint8_t *pixels; /* of column 0 and row `first_row` */
    size_t stride;
    int first_row, rows;
    int channels, left, right; /* columns that are read: left <= x < right */
    uint8_t *grey;             /* not NULL: where rows are turned grey, starting with column `left` */
} Array;

/* Asks for a row that comes soon. Cached images lie in large memory, and a jump from the end of one row to
 * the start of the next is what hardware does not foresee. Always inlined: to gcc, a function that only
 * prefetches does nothing, and calls of it are dropped. */
__attribute__((always_inline)) static inline void prefetch_row(const Array *array, int y) {
    enum { LINE = 64 };
    if (y < array->first_row || y - array->first_row >= array->rows) return;
    const uint8_t *row = array->pixels + (size_t)(y - array->first_row) * array->stride;
    const uint8_t *end = row + (size_t)array->right * (size_t)array->channels;
    for (const uint8_t *p = row + (size_t)array->left * (size_t)array->channels; p < end; p += LINE)
        __builtin_prefetch(p);
}

static const uint8_t *array_row(void *context, int y) {
    enum { AHEAD = 4 };
    const Array *array = context;
    const uint8_t *row = array->pixels + (size_t)(y - array->first_row) * array->stride;
    prefetch_row(array, y + AHEAD);
    if (array->grey == NULL) return row;
    for (int x = array->left; x < array->right; x++) {
        const uint8_t *p = row + 3 * (size_t)x;
        array->grey[x - array->left] = (uint8_t)((p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 32768) >> 16);
    }
    return array->grey;
}

static int run_array(Scratch *scratch, const Spec *spec, const Source *source, int descending, uint8_t *out) {
    Resampler *r = &scratch->resampler;
    Array array = {source->bytes,
                   (size_t)source->width * (size_t)source->channels,
                   0,
                   source->height,
                   source->channels,
                   r->x.low,
                   r->x.high,
                   NULL};
    if (source->channels == spec->channels || source->channels == 1)
        return resample(r, array_row, &array, 0, array.stride, source->channels, descending, out);
    array.grey = buffer_need(&scratch->turned, (size_t)(array.right - array.left) + 2 * WINDOW);
    if (array.grey == NULL) return STATUS_NO_MEMORY;
    return resample(r, array_row, &array, array.left, (size_t)(array.right - array.left) + WINDOW, 1,
                    descending, out);
}

typedef struct {
    Resampler *resampler;
    int channels, descending;
    uint8_t *out;
} Stream;

static const uint8_t *stream_row(void *context, int y) { return decoder_row(context, y); }

static void take_stream(void *context, Decoder *decoder) {
    Stream *s = context;
    resample(s->resampler, stream_row, decoder, decoder_left(decoder), decoder_row_bytes(decoder),
             s->channels, s->descending, s->out);
}

/* Stored as columns: the touched part is decoded, turned, and resampled as an array. */
static int run_turned(Scratch *scratch, const Spec *spec, const Source *source, const Header *header,
                      int scale, int descending, uint8_t *out) {
    Resampler *r = &scratch->resampler;
    Region region = {scale, spec->channels, r->y.low, r->x.low, r->y.high, r->x.high};
    int width = r->x.high - r->x.low, height = r->y.high - r->y.low, channels = spec->channels;
    size_t size = (size_t)width * (size_t)height * (size_t)channels;
    uint8_t *stored = buffer_need(&scratch->stored, size),
            *turned = buffer_need(&scratch->turned, size + WINDOW);
    if (stored == NULL || turned == NULL) return STATUS_NO_MEMORY;
    int status = decode_region(scratch, source, header, &region, stored);
    if (status != STATUS_OK) return status;
    copy_strided(stored, (ptrdiff_t)height * channels, channels, channels, width, height, turned);
    Array array = {turned, (size_t)width * (size_t)channels, r->y.low, height, channels, 0, width, NULL};
    return resample(r, array_row, &array, r->x.low, array.stride, channels, descending, out);
}

/* One axis of a box, in a source that is decoded scaled down and maybe stored mirrored. */
typedef struct {
    double at, size;
    int low, high, extent;
} Span;

static Span span_of(double at, double size, int low, int high, int extent, int scale, int mirrored) {
    int scaled = (extent + scale - 1) / scale;
    /* the last scaled pixel may stand for less than `scale` pixels; mirrored, it comes first */
    double shift = mirrored ? scaled - (double)extent / scale : 0.0;
    Span span = {at / scale + shift, size / scale, 0, scaled, scaled};
    if (low > 0) span.low = (int)ceil((double)low / scale + shift);
    if (high < extent) span.high = (int)floor((double)high / scale + shift);
    return span;
}

static int job_is_sound(const Job *job) {
    for (int i = 0; i < 4; i++)
        if (!isfinite(job->box[i])) return 0;
    if (job->scale != 0 && !scale_is_known(job->scale)) return 0;
    return job->width > 0 && job->height > 0 && job->box[2] > 0 && job->box[3] > 0 && job->clamp[0] >= 0 &&
           job->clamp[1] >= 0 && job->clamp[2] <= job->width && job->clamp[3] <= job->height &&
           job->clamp[0] < job->clamp[2] && job->clamp[1] < job->clamp[3];
}

static int fill_taps(Resampler *r, const Spec *spec, const Job *job, Span x, Span y, int mirror_x, int mirror_y) {
    if (taps_fill(&r->across, spec->method, spec->out_w, x.at, x.size, x.low, x.high) < 0 ||
        taps_fill(&r->down, spec->method, spec->out_h, y.at, y.size, y.low, y.high) < 0 || filter_ready(r) < 0)
        return STATUS_NO_MEMORY;
    if (mirror_x) taps_mirror(&r->across, spec->out_w, x.extent);
    if (mirror_y) taps_mirror(&r->down, spec->out_h, y.extent);
    if (job->hflip) taps_flip(&r->across, spec->out_w);
    if (job->vflip) taps_flip(&r->down, spec->out_h);
    r->x.low = r->across.low;
    r->x.high = r->across.high;
    r->y.low = r->down.low;
    r->y.high = r->down.high;
    return STATUS_OK;
}

static int fill_axes(Scratch *scratch, const Spec *spec, const Job *job, Span x, Span y, int mirror_x,
                     int mirror_y) {
    Resampler *r = &scratch->resampler;
    if (spec->method >= FILTER_LINEAR) return fill_taps(r, spec, job, x, y, mirror_x, mirror_y);
    axis_fill(&r->x, spec->out_w, x.at, x.size, x.low, x.high, spec->method == NEAREST);
    axis_fill(&r->y, spec->out_h, y.at, y.size, y.low, y.high, spec->method == NEAREST);
    if (mirror_x) axis_mirror(&r->x, spec->out_w, x.extent);
    if (mirror_y) axis_mirror(&r->y, spec->out_h, y.extent);
    if (job->hflip) axis_flip(&r->x, spec->out_w);
    if (job->vflip) axis_flip(&r->y, spec->out_h);
    return STATUS_OK;
}

static int run_jpeg(Scratch *scratch, const Spec *spec, const Job *job, const Source *source, uint8_t *out) {
    Header header;
    int status = open_jpeg(scratch, source, spec->max_pixels, spec->as_stored, &header);
    if (status != STATUS_OK) return status;
    int given = job->scale > 1 ? job->scale : 1;
    scale_header(&header, given);
    if (header.width != job->width || header.height != job->height || header.orientation != job->orientation)
        return STATUS_MISMATCH;
    int o = header.orientation, mirror_x = orientation_mirrors_x(o), mirror_y = orientation_mirrors_y(o);
    int scale = spec->dct_scaling && spec->method == BETWEEN && given == 1 ? 8 : 1;
    Span x, y;
    for (;; scale /= 2) {
        x = span_of(job->box[0], job->box[2], job->clamp[0], job->clamp[2], job->width, scale, mirror_x);
        y = span_of(job->box[1], job->box[3], job->clamp[1], job->clamp[3], job->height, scale, mirror_y);
        if (scale == 1) break;
        if (x.size >= spec->out_w && y.size >= spec->out_h && x.low < x.high && y.low < y.high) break;
    }
    status = fill_axes(scratch, spec, job, x, y, mirror_x, mirror_y);
    if (status != STATUS_OK) return status;
    scale *= given;
    int descending = mirror_y != (job->vflip != 0);
    if (orientation_transposes(o)) return run_turned(scratch, spec, source, &header, scale, descending, out);
    Resampler *r = &scratch->resampler;
    Region region = {scale, spec->channels, r->x.low, r->y.low, r->x.high, r->y.high};
    Stream stream = {r, spec->channels, descending, out};
    return decoder_run(scratch->decoder, source->bytes, source->size, &header, &region, take_stream, &stream);
}

int job_run(Scratch *scratch, const Spec *spec, const Job *job, const Source *source, uint8_t *out) {
    if (!job_is_sound(job)) return STATUS_BAD_JOB;
    if (job->is_jpeg) return run_jpeg(scratch, spec, job, source, out);
    if (source->width != job->width || source->height != job->height) return STATUS_MISMATCH;
    Span x = {job->box[0], job->box[2], job->clamp[0], job->clamp[2], job->width};
    Span y = {job->box[1], job->box[3], job->clamp[1], job->clamp[3], job->height};
    int status = fill_axes(scratch, spec, job, x, y, 0, 0);
    if (status != STATUS_OK) return status;
    return run_array(scratch, spec, source, job->vflip != 0, out);
}
