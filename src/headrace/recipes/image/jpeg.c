/* Region decoding with a libjpeg loaded at run time. */
#include "jpeg.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libjpeg.h"
#include "scan.h"

/* ---- the library ---- */

typedef struct {
    JpegCalls call;
    int version; /* of its interface: 62, 70 or 80 */
    size_t size; /* of its struct */
    int known;   /* its struct is as it is known for this interface */
} Library;

/* Replaced as a whole and never freed: decoders keep the one they were made with. */
static const Library *current;

const char *const library_calls[] = {LIBJPEG_CALLS, NULL};
_Static_assert(sizeof library_calls == sizeof(JpegCalls) + sizeof(void *), "one name per call");

/* Told a wrong version or size, a library fails before it allocates anything, and names its own. */
typedef struct {
    union {
        JpegInfo info; /* first, so that the library's pointer is ours */
        char room[MOST_INFO];
    };
    JpegErrors errors;
    jmp_buf escape;
} Inquiry;

static void answer(JpegInfo *info) { longjmp(((Inquiry *)info)->escape, 1); }

/* What the library has where it was told something else; 0 when it took what it was told. */
static int ask(const JpegCalls *call, int version, size_t size) {
    Inquiry inquiry;
    memset(&inquiry, 0, sizeof inquiry);
    inquiry.info.err = call->std_error(&inquiry.errors);
    inquiry.errors.error_exit = answer;
    if (setjmp(inquiry.escape)) return inquiry.errors.msg_parm.i[0];
    call->create(&inquiry.info, version, size);
    call->destroy(&inquiry.info);
    return 0;
}

const char *library_use(const char *path, void *const *calls) {
    static char error[512];
    Library library;
    memcpy(&library.call, calls, sizeof library.call);
    library.version = ask(&library.call, 0, 0);
    if (library.version != 62 && library.version != 70 && library.version != 80) {
        snprintf(error, sizeof error, "%s has an interface that is not known (%d)", path, library.version);
        return error;
    }
    int size = ask(&library.call, library.version, 0);
    library.size = (size_t)size;
    if (size < (int)sizeof(JpegInfo) || size > MOST_INFO ||
        ask(&library.call, library.version, library.size) != 0) {
        snprintf(error, sizeof error, "%s has a struct of unexpected size (%d)", path, size);
        return error;
    }
    library.known = sizeof(void *) == 8 && size == (library.version == 62   ? SIZE_62
                                                    : library.version == 70 ? SIZE_70
                                                                            : SIZE_80);
    Library *kept = malloc(sizeof *kept);
    if (kept == NULL) return "out of memory";
    *kept = library;
    current = kept;
    return NULL;
}

int library_version(void) { return current ? current->version : 0; }

/* ---- the decoder ---- */

struct Decoder {
    union {
        JpegInfo info; /* first, so that the library's pointer is ours */
        char room[MOST_INFO];
    };
    JpegErrors errors;
    JpegSource source;
    JpegProgress progress;
    const Library *lib;
    jmp_buf escape;
    int status;
    int simple;   /* nothing can fail after the rows that are wanted */
    int ran_out;  /* the library asked for bytes after the last one */
    int next;     /* the row that comes next from the library */
    int from, x0; /* columns: where decoded rows start, and where the region does */
    int wanted;   /* pixels of the region's width */
    uint8_t *row;
    Buffer row_buffer;
    char message[JPEG_MESSAGE];
    Scan scan;
    const uint8_t *scan_data;
    size_t scan_size;
    unsigned mcus; /* that the scan has given */
    int (*library_mcu)(JpegInfo *, int16_t (**blocks)[64]);
};

static void fail(JpegInfo *info) {
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
static void ignore_message(JpegInfo *info, int level) { (void)info, (void)level; }
static void ignore_output(JpegInfo *info) { (void)info; }

static void source_nothing(JpegInfo *info) { (void)info; }

static int source_fill(JpegInfo *info) {
    static const uint8_t end[2] = {0xff, JPEG_END};
    ((Decoder *)info)->ran_out = 1;
    info->src->next_input_byte = end;
    info->src->bytes_in_buffer = 2;
    return 1;
}

static void source_skip(JpegInfo *info, long count) {
    if (count <= 0) return;
    if ((size_t)count >= info->src->bytes_in_buffer) {
        source_fill(info);
        return;
    }
    info->src->next_input_byte += count;
    info->src->bytes_in_buffer -= (size_t)count;
}

/* A small file can ask for any number of passes over a large image. */
static void watch_scans(JpegInfo *info) {
    enum { MOST_SCANS = 500 };
    Decoder *d = (Decoder *)info;
    if (d->info.input_scan_number > MOST_SCANS) fail_with(d, STATUS_TOO_MANY_SCANS);
}

Decoder *decoder_new(void) {
    if (current == NULL) return NULL;
    Decoder *d = calloc(1, sizeof *d);
    if (d == NULL) return NULL;
    d->lib = current;
    d->info.err = d->lib->call.std_error(&d->errors);
    d->errors.error_exit = fail;
    d->errors.emit_message = ignore_message;
    d->errors.output_message = ignore_output;
    d->source.init_source = source_nothing;
    d->source.fill_input_buffer = source_fill;
    d->source.skip_input_data = source_skip;
    d->source.resync_to_restart = d->lib->call.resync;
    d->source.term_source = source_nothing;
    d->progress.progress_monitor = watch_scans;
    return d;
}

void decoder_free(Decoder *d) {
    if (d == NULL) return;
    free(d->row_buffer.data);
    free(d);
}

const char *decoder_message(const Decoder *d) { return d->message; }
unsigned decoder_own_mcus(const Decoder *d) { return d->mcus; }

/* Follows scans, and segments between them, from the first scan to the end marker. */
typedef enum { ENDS_NEVER, ENDS_LATER, ENDS_AFTER_SCAN } Ending;

static Ending find_end(const uint8_t *bytes, size_t size, size_t scan) {
    size_t at = scan ? scan : 2, segments = 0;
    while (at + 1 < size) {
        const uint8_t *found = memchr(bytes + at, 0xff, size - at - 1);
        if (found == NULL) break;
        at = (size_t)(found - bytes);
        unsigned marker = found[1];
        if (marker == JPEG_END) return segments <= 1 ? ENDS_AFTER_SCAN : ENDS_LATER;
        if (marker == 0xff) {
            at++;
        } else if (marker <= 1 || (marker >= 0xd0 && marker <= 0xd7)) {
            at += 2;
        } else {
            int bare = marker == 0xd8; /* the start of another image */
            if (!bare && size - at < 4) break;
            at += 2 + (bare ? 0 : (size_t)(found[2] << 8 | found[3]));
            segments++; /* the scan's own header is the first */
        }
    }
    return ENDS_NEVER;
}

/* Chroma is upsampled from its neighbours, and unfinished progressive files are smoothed from neighbouring
 * blocks; so more columns than asked for are decoded, and those come out as in the whole image. */
static void crop_columns(Decoder *d, const Header *header, const Region *region) {
    JpegInfo *info = &d->info;
    int smoothed = info->do_block_smoothing && header->progressive;
    int block = header->max_h * 8;
    int margin = smoothed ? 4 * block : header->max_h > 1 ? 4 : 0;
    int x0 = region->x0 > margin ? region->x0 - margin : 0;
    int x1 = region->x1 + margin;
    if (x1 > (int)info->output_width) x1 = (int)info->output_width;
    if (x1 - x0 + block > (int)info->output_width) x0 = 0;
    unsigned at = (unsigned)x0, width = (unsigned)(x1 - x0);
    if (width < info->output_width) {
        d->lib->call.crop(info, &at, &width);
        int mcu = 8 / region->scale * (header->components == 1 ? 1 : header->max_h);
        scan_columns(&d->scan, mcu, (int)at, (int)(at + width));
    }
    d->from = (int)at;
}

/* ---- entropy-coded data ---- */

static int own_scans = 1;

void decoder_scans(int own) { own_scans = own; }

static JpegEntropy *entropy_of(Decoder *d) {
    JpegEntropy *entropy;
    memcpy(&entropy, d->room + d->lib->size - ENTROPY_FROM_END, sizeof entropy);
    return entropy;
}

/* An MCU by scan.c. What is unusual is the library's to judge: it gets the data from the beginning, reads what was
 * read already to nowhere, as it does with rows that are skipped, and goes on as if nobody else had been there. */
static int own_mcu(JpegInfo *info, int16_t (**blocks)[64]) {
    Decoder *d = (Decoder *)info;
    if (scan_mcu(&d->scan, blocks)) {
        d->mcus++;
        return 1;
    }
    for (int k = 0; blocks != NULL && k < d->scan.blocks; k++) memset(blocks[k], 0, sizeof *blocks[k]);
    entropy_of(d)->decode_mcu = d->library_mcu;
    info->src->next_input_byte = d->scan_data;
    info->src->bytes_in_buffer = d->scan_size;
    for (; d->mcus > 0; d->mcus--)
        if (!d->library_mcu(info, NULL)) return 0;
    return d->library_mcu(info, blocks);
}

/* Takes the library's place where it reads the data of a single scan of Huffman codes. */
static void use_scan(Decoder *d, const uint8_t *bytes, size_t size, const Header *header) {
    if (!own_scans || !d->lib->known || !d->simple || !header->sequential || header->scan == 0) return;
    if (size - header->scan < 4) return;
    const uint8_t *sos = bytes + header->scan + 4;
    size_t length = (size_t)(bytes[header->scan + 2] << 8 | bytes[header->scan + 3]);
    if (length < 2 || length > size - header->scan - 2) return;
    d->scan_data = sos + length - 2;
    d->scan_size = (size_t)(bytes + size - d->scan_data);
    if (d->info.src->next_input_byte != d->scan_data) return;
    if (!scan_begin(&d->scan, bytes + header->frame, header->frame_size, sos, length - 2,
                    (LibraryTable **)d->info.dc_huff_tbl_ptrs, (LibraryTable **)d->info.ac_huff_tbl_ptrs,
                    header->restarts, d->scan_data, bytes + size))
        return;
    d->library_mcu = entropy_of(d)->decode_mcu;
    entropy_of(d)->decode_mcu = own_mcu;
}

/* Rows at multiples of 16 bytes, libjpeg-turbo writes past the caches on x86, and these are read at once. */
enum { ASKEW = 8 };

static void set_up(Decoder *d, const uint8_t *bytes, size_t size, const Header *header, const Region *region) {
    JpegInfo *info = &d->info;
    if (d->lib->call.read_header(info, 1) != JPEG_HEADER_READ) fail_with(d, STATUS_NOT_NATIVE);
    if ((int)info->image_width != header->stored_width || (int)info->image_height != header->stored_height ||
        info->num_components != header->components || info->data_precision != 8)
        fail_with(d, STATUS_MISMATCH);
    info->out_color_space = region->channels == 1 ? JPEG_GREY : JPEG_RGB;
    info->scale_num = (unsigned)(8 / region->scale);
    info->scale_denom = 8;
    info->dct_method = JPEG_ISLOW;
    info->do_fancy_upsampling = 1;
    d->lib->call.start(info);
    if (info->output_components != region->channels || region->x0 < 0 || region->y0 < 0 ||
        region->x0 >= region->x1 || region->y0 >= region->y1 || region->x1 > (int)info->output_width ||
        region->y1 > (int)info->output_height)
        fail_with(d, STATUS_MISMATCH);
    d->from = 0;
    d->x0 = region->x0;
    d->wanted = region->x1 - region->x0;
    d->next = 0;
    /* room for the widest row, and for kernels that read a window past the last pixel */
    d->row = buffer_need(&d->row_buffer, ASKEW + (size_t)info->output_width * (size_t)region->channels + 2 * WINDOW);
    if (d->row == NULL) fail_with(d, STATUS_NO_MEMORY);
    d->row += ASKEW;
    if (!d->simple) return;
    use_scan(d, bytes, size, header);
    crop_columns(d, header, region);
    if (region->y0 > 0) d->next = (int)d->lib->call.skip(info, (unsigned)region->y0);
}

static void read_row(Decoder *d, uint8_t *into) {
    if (d->lib->call.read(&d->info, &into, 1) != 1) fail_with(d, STATUS_TRUNCATED);
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
    d->message[0] = 0;
    Ending ending = find_end(bytes, size, header->scan);
    if (ending == ENDS_NEVER) return STATUS_TRUNCATED;
    /* All scans of a progressive image are read before its first row, and where the end follows the only
     * scan, nothing can fail after it. Otherwise all is read: a verdict must not depend on the rows wanted. */
    d->simple = header->progressive || ending == ENDS_AFTER_SCAN;
    d->status = STATUS_OK;
    d->ran_out = 0;
    d->mcus = 0;
    d->source.next_input_byte = bytes;
    d->source.bytes_in_buffer = size;
    if (setjmp(d->escape) == 0) {
        /* A new one for every image (a microsecond): one that lacks tables would get those of the last. */
        d->lib->call.create(&d->info, d->lib->version, d->lib->size);
        d->info.src = &d->source;
        d->info.progress = &d->progress;
        set_up(d, bytes, size, header, region);
        while (d->next < region->y0) read_row(d, d->row);
        body(context, d);
        if (!d->simple) {
            while (d->info.output_scanline < d->info.output_height) read_row(d, d->row);
            d->lib->call.finish(&d->info);
        }
    }
    if (d->ran_out && d->status != STATUS_TOO_MANY_SCANS) d->status = STATUS_TRUNCATED;
    d->lib->call.destroy(&d->info);
    return d->status;
}
