/* The bare loop's region decode: libjpeg-turbo's crop and skip calls and nothing else.
 *
 * Trusted input only. The library's symbols are resolved when this is loaded, so that the loop can use the very
 * libjpeg that headrace uses. Decodes rows y .. y+h of the columns around x .. x+w (libjpeg starts on a block) as
 * RGB into `out`, and returns the first decoded column; the row stride in pixels goes to `stride`. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

typedef struct {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
} Decoder;

static void fail(j_common_ptr info) { longjmp(((Decoder *)info)->escape, 1); }

Decoder *region_new(void) {
    Decoder *d = calloc(1, sizeof *d);
    d->info.err = jpeg_std_error(&d->errors);
    d->errors.error_exit = fail;
    jpeg_create_decompress(&d->info);
    return d;
}

int region_decode(Decoder *d, const unsigned char *bytes, size_t size, int x, int y, int w, int h,
                  unsigned char *out, int *stride) {
    j_decompress_ptr info = &d->info;
    if (setjmp(d->escape)) {
        jpeg_abort_decompress(info);
        return -1;
    }
    jpeg_mem_src(info, (unsigned char *)bytes, size);
    jpeg_read_header(info, TRUE);
    info->out_color_space = JCS_RGB;
    jpeg_start_decompress(info);
    JDIMENSION left = (JDIMENSION)x, width = (JDIMENSION)w;
    if (w < (int)info->output_width) jpeg_crop_scanline(info, &left, &width);
    jpeg_skip_scanlines(info, (JDIMENSION)y);
    while ((int)info->output_scanline < y + h) {
        JSAMPROW row = out + (size_t)((int)info->output_scanline - y) * width * 3;
        jpeg_read_scanlines(info, &row, 1);
    }
    jpeg_abort_decompress(info);
    *stride = (int)width;
    return (int)left;
}
