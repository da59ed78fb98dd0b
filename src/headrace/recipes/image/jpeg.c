/* Region decoding with a libjpeg loaded at run time. */
#include "jpeg.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
/* jpeglib.h first */
#include <jerror.h>

/* ---- the library ---- */

typedef struct {
    struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
    void (*create)(j_decompress_ptr, int, size_t);
    int (*read_header)(j_decompress_ptr, boolean);
    boolean (*start)(j_decompress_ptr);
    JDIMENSION (*read)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
    void (*crop)(j_decompress_ptr, JDIMENSION *, JDIMENSION *);
    JDIMENSION (*skip)(j_decompress_ptr, JDIMENSION);
    boolean (*finish)(j_decompress_ptr);
    void (*abort)(j_decompress_ptr);
    void (*destroy)(j_decompress_ptr);
    boolean (*resync)(j_decompress_ptr, int);
} Library;

/* Replaced as a whole and never freed: decoders keep the one they were made with. */
static const Library *current;

const char *library_load(const char *path) {
    static const char *names[] = {
        "jpeg_std_error",        "jpeg_CreateDecompress",   "jpeg_read_header",      "jpeg_start_decompress",
        "jpeg_read_scanlines",   "jpeg_crop_scanline",      "jpeg_skip_scanlines",   "jpeg_finish_decompress",
        "jpeg_abort_decompress", "jpeg_destroy_decompress", "jpeg_resync_to_restart"};
    static char error[512];
    enum { N = sizeof names / sizeof *names };
    _Static_assert(sizeof(Library) == N * sizeof(void *), "one name per function");

    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        snprintf(error, sizeof error, "%s", why ? why : "cannot be loaded");
        return error;
    }
    void *found[N];
    for (int i = 0; i < N; i++) {
        found[i] = dlsym(handle, names[i]);
        if (found[i] == NULL) {
            snprintf(error, sizeof error, "%s has no function %s", path, names[i]);
            dlclose(handle);
            return error;
        }
    }
    Library *library = malloc(sizeof *library);
    if (library == NULL) return "out of memory";
    memcpy(library, found, sizeof *library);
    const Library *before = current;
    current = library;
    Decoder *trial = decoder_new();
    if (trial == NULL) {
        current = before;
        free(library);
        snprintf(error, sizeof error, "%s is built for another libjpeg interface than %d", path,
                 JPEG_LIB_VERSION);
        return error;
    }
    decoder_free(trial);
    return NULL;
}

/* ---- the decoder ---- */

struct Decoder {
    struct jpeg_decompress_struct info; /* first, so that the library's pointer is ours */
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    const Library *lib;
    jmp_buf escape;
    int status;
    int complete; /* the end marker stands where it should */
    int ran_out;  /* the library asked for bytes after the last one */
    int next;     /* the row that comes next from the library */
    int from, x0; /* columns: where decoded rows start, and where the region does */
    int wanted;   /* pixels of the region's width */
    JSAMPROW row;
    Buffer row_buffer;
    char message[JMSG_LENGTH_MAX];
};

static void fail(j_common_ptr info) {
    Decoder *d = (Decoder *)info;
    d->errors.format_message(info, d->message);
    if (d->status == STATUS_OK) d->status = STATUS_LIBJPEG + d->errors.msg_code;
    longjmp(d->escape, 1);
}

static void fail_with(Decoder *d, int status) {
    d->status = status;
    longjmp(d->escape, 1);
}

/* Warnings mean damaged pixels that the library papered over, as every viewer does; running out of bytes is
 * told apart by the source. */
static void ignore_message(j_common_ptr info, int level) { (void)info, (void)level; }
static void ignore_output(j_common_ptr info) { (void)info; }

static void source_nothing(j_decompress_ptr info) { (void)info; }

static boolean source_fill(j_decompress_ptr info) {
    static const JOCTET end[2] = {0xff, JPEG_EOI};
    ((Decoder *)info)->ran_out = 1;
    info->src->next_input_byte = end;
    info->src->bytes_in_buffer = 2;
    return TRUE;
}

static void source_skip(j_decompress_ptr info, long count) {
    if (count <= 0) return;
    if ((size_t)count >= info->src->bytes_in_buffer) {
        source_fill(info);
        return;
    }
    info->src->next_input_byte += count;
    info->src->bytes_in_buffer -= (size_t)count;
}

/* A small file can ask for any number of passes over a large image. */
static void watch_scans(j_common_ptr info) {
    enum { MOST_SCANS = 500 };
    Decoder *d = (Decoder *)info;
    if (d->info.input_scan_number > MOST_SCANS) fail_with(d, STATUS_TOO_MANY_SCANS);
}

/* Apart from decoder_new, as setjmp makes its caller's variables unsure. */
static int create(Decoder *d) {
    if (setjmp(d->escape)) return -1; /* the library was built for another struct; nothing is allocated */
    d->lib->create(&d->info, JPEG_LIB_VERSION, sizeof d->info);
    return 0;
}

Decoder *decoder_new(void) {
    if (current == NULL) return NULL;
    Decoder *d = calloc(1, sizeof *d);
    if (d == NULL) return NULL;
    d->lib = current;
    d->info.err = d->lib->std_error(&d->errors);
    d->errors.error_exit = fail;
    d->errors.emit_message = ignore_message;
    d->errors.output_message = ignore_output;
    if (create(d) < 0) {
        free(d);
        return NULL;
    }
    d->source.init_source = source_nothing;
    d->source.fill_input_buffer = source_fill;
    d->source.skip_input_data = source_skip;
    d->source.resync_to_restart = d->lib->resync;
    d->source.term_source = source_nothing;
    d->progress.progress_monitor = watch_scans;
    d->info.src = &d->source;
    d->info.progress = &d->progress;
    return d;
}

void decoder_free(Decoder *d) {
    if (d == NULL) return;
    d->lib->destroy(&d->info);
    free(d->row_buffer.data);
    free(d);
}

const char *decoder_message(const Decoder *d) { return d->message; }

/* Whether the end marker is where a complete file has it (some garbage after it is common). Only then may
 * rows be left undecoded: a file cut short must fail whichever rows are wanted. */
static int looks_complete(const uint8_t *bytes, size_t size, size_t scan) {
    enum { TAIL = 2048 };
    size_t from = size > TAIL ? size - TAIL : 0;
    if (scan == 0) return 0;
    if (from < scan) from = scan;
    for (size_t i = size; i >= from + 2; i--)
        if (bytes[i - 2] == 0xff && bytes[i - 1] == JPEG_EOI) return 1;
    return 0;
}

/* Chroma is upsampled from its neighbours, and unfinished progressive files are smoothed from neighbouring
 * blocks; so more columns than asked for are decoded, and those come out as in the whole image. */
static void crop_columns(Decoder *d, const Region *region) {
    j_decompress_ptr info = &d->info;
    int smoothed = info->do_block_smoothing && info->progressive_mode;
    int block = info->max_h_samp_factor * 8;
    int margin = smoothed ? 4 * block : info->max_h_samp_factor > 1 ? 4 : 0;
    int x0 = region->x0 > margin ? region->x0 - margin : 0;
    int x1 = region->x1 + margin;
    if (x1 > (int)info->output_width) x1 = (int)info->output_width;
    if (x1 - x0 + block > (int)info->output_width) x0 = 0;
    JDIMENSION at = (JDIMENSION)x0, width = (JDIMENSION)(x1 - x0);
    if (width < info->output_width) d->lib->crop(info, &at, &width);
    d->from = (int)at;
}

static void set_up(Decoder *d, const Header *header, const Region *region) {
    j_decompress_ptr info = &d->info;
    if (d->lib->read_header(info, TRUE) != JPEG_HEADER_OK) fail_with(d, STATUS_NOT_NATIVE);
    if ((int)info->image_width != header->stored_width || (int)info->image_height != header->stored_height ||
        info->num_components != header->components || info->data_precision != 8)
        fail_with(d, STATUS_MISMATCH);
    info->out_color_space = region->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    info->scale_num = (unsigned)(8 / region->scale);
    info->scale_denom = 8;
    info->dct_method = JDCT_ISLOW;
    info->do_fancy_upsampling = TRUE;
    d->lib->start(info);
    if (info->output_components != region->channels || region->x0 < 0 || region->y0 < 0 ||
        region->x0 >= region->x1 || region->y0 >= region->y1 || region->x1 > (int)info->output_width ||
        region->y1 > (int)info->output_height)
        fail_with(d, STATUS_MISMATCH);
    d->from = 0;
    d->x0 = region->x0;
    d->wanted = region->x1 - region->x0;
    d->next = 0;
    /* room for the widest row, and for kernels that read a window past the last pixel */
    d->row = buffer_need(&d->row_buffer, (size_t)info->output_width * (size_t)region->channels + 2 * WINDOW);
    if (d->row == NULL) fail_with(d, STATUS_NO_MEMORY);
    if (!d->complete) return;
    crop_columns(d, region);
    if (region->y0 > 0) d->next = (int)d->lib->skip(info, (JDIMENSION)region->y0);
}

static void read_row(Decoder *d, JSAMPROW into) {
    if (d->lib->read(&d->info, &into, 1) != 1) fail_with(d, STATUS_TRUNCATED);
    d->next++;
}

const uint8_t *decoder_row(Decoder *d, int y) {
    while (d->next <= y) read_row(d, d->row);
    return d->row;
}

int decoder_left(const Decoder *d) { return d->from; }

void decoder_row_into(Decoder *d, uint8_t *out) {
    if (d->from == d->x0 && (int)d->info.output_width == d->wanted) {
        read_row(d, out);
        return;
    }
    size_t channels = (size_t)d->info.output_components;
    read_row(d, d->row);
    memcpy(out, d->row + (size_t)(d->x0 - d->from) * channels, (size_t)d->wanted * channels);
}

size_t decoder_row_bytes(const Decoder *d) {
    return (size_t)d->info.output_width * (size_t)d->info.output_components + WINDOW;
}

int decoder_run(Decoder *d, const uint8_t *bytes, size_t size, const Header *header, const Region *region,
                DecodeBody body, void *context) {
    d->complete = looks_complete(bytes, size, header->scan);
    d->status = STATUS_OK;
    d->ran_out = 0;
    d->message[0] = 0;
    d->source.next_input_byte = bytes;
    d->source.bytes_in_buffer = size;
    if (setjmp(d->escape) == 0) {
        set_up(d, header, region);
        while (d->next < region->y0) read_row(d, d->row);
        body(context, d);
        if (!d->complete) {
            while (d->info.output_scanline < d->info.output_height) read_row(d, d->row);
            d->lib->finish(&d->info);
        }
    }
    if (d->ran_out && d->status != STATUS_TOO_MANY_SCANS) d->status = STATUS_TRUNCATED;
    d->lib->abort(&d->info);
    return d->status;
}
