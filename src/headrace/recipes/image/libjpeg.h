/* libjpeg as these kernels see it: the calls, and the start of its structs.
 *
 * Written by hand, because the headers of a machine need not fit the library that is found on it: Pillow
 * brings libjpeg-turbo with the interface of libjpeg 6.2, Ubuntu's and conda's have that of libjpeg 8. Those
 * interfaces differ in fields that come after the ones named here, and so in the size of the struct, which a
 * library tells when it is asked. Names are libjpeg's own. */
#ifndef HEADRACE_LIBJPEG_H
#define HEADRACE_LIBJPEG_H

#include <stddef.h>
#include <stdint.h>

enum { JPEG_GREY = 1, JPEG_RGB = 2 }; /* colour spaces */
enum { JPEG_ISLOW = 0 };              /* the exact integer DCT */
enum { JPEG_END = 0xd9, JPEG_HEADER_READ = 1 };
enum { JPEG_MESSAGE = 200, JPEG_TABLES = 4 };
enum { MOST_INFO = 1024 }; /* room for the struct of any interface; they have 632 to 656 bytes */

typedef struct JpegInfo JpegInfo;

typedef struct {
    void (*error_exit)(JpegInfo *);
    void (*emit_message)(JpegInfo *, int level);
    void (*output_message)(JpegInfo *);
    void (*format_message)(JpegInfo *, char *buffer);
    void (*reset_error_mgr)(JpegInfo *);
    int msg_code;
    union {
        int i[8];
        char s[80];
    } msg_parm;
    int trace_level;
    long num_warnings;
    const char *const *jpeg_message_table;
    int last_jpeg_message;
    const char *const *addon_message_table;
    int first_addon_message, last_addon_message;
} JpegErrors;

typedef struct {
    const uint8_t *next_input_byte;
    size_t bytes_in_buffer;
    void (*init_source)(JpegInfo *);
    int (*fill_input_buffer)(JpegInfo *);
    void (*skip_input_data)(JpegInfo *, long count);
    int (*resync_to_restart)(JpegInfo *, int desired);
    void (*term_source)(JpegInfo *);
} JpegSource;

typedef struct {
    void (*progress_monitor)(JpegInfo *);
    long pass_counter, pass_limit;
    int completed_passes, total_passes;
} JpegProgress;

/* The decompressor: what the interfaces 6.2, 7 and 8 have in common. The library's own is longer. */
struct JpegInfo {
    JpegErrors *err;
    void *mem;
    JpegProgress *progress;
    void *client_data;
    int is_decompressor, global_state;

    JpegSource *src;
    unsigned image_width, image_height;
    int num_components, jpeg_color_space;

    int out_color_space;
    unsigned scale_num, scale_denom;
    double output_gamma;
    int buffered_image, raw_data_out, dct_method, do_fancy_upsampling, do_block_smoothing;
    int quantize_colors, dither_mode, two_pass_quantize, desired_number_of_colors;
    int enable_1pass_quant, enable_external_quant, enable_2pass_quant;

    unsigned output_width, output_height;
    int out_color_components, output_components, rec_outbuf_height, actual_number_of_colors;
    uint8_t **colormap;
    unsigned output_scanline;
    int input_scan_number;
    unsigned input_iMCU_row;
    int output_scan_number;
    unsigned output_iMCU_row;
    int (*coef_bits)[64];
    void *quant_tbl_ptrs[JPEG_TABLES], *dc_huff_tbl_ptrs[JPEG_TABLES], *ac_huff_tbl_ptrs[JPEG_TABLES];
    int data_precision;
};

/* The start of the part that reads entropy-coded data. Its pointer is the fifth from the end of the decompressor in
 * all interfaces, where the struct has the size that is known for that one. */
typedef struct {
    void (*start_pass)(JpegInfo *);
    int (*decode_mcu)(JpegInfo *, int16_t (**blocks)[64]);
} JpegEntropy;
enum { ENTROPY_FROM_END = 5 * sizeof(void *), SIZE_62 = 632, SIZE_70 = 640, SIZE_80 = 656 };

/* The calls, in the order of LIBJPEG_CALLS. */
typedef struct {
    JpegErrors *(*std_error)(JpegErrors *);
    void (*create)(JpegInfo *, int version, size_t size);
    int (*read_header)(JpegInfo *, int require_image);
    int (*start)(JpegInfo *);
    unsigned (*read)(JpegInfo *, uint8_t **rows, unsigned most);
    void (*crop)(JpegInfo *, unsigned *x, unsigned *width);
    unsigned (*skip)(JpegInfo *, unsigned rows);
    int (*finish)(JpegInfo *);
    void (*destroy)(JpegInfo *);
    int (*resync)(JpegInfo *, int desired);
} JpegCalls;

#define LIBJPEG_CALLS                                                                                        \
    "jpeg_std_error", "jpeg_CreateDecompress", "jpeg_read_header", "jpeg_start_decompress",                  \
        "jpeg_read_scanlines", "jpeg_crop_scanline", "jpeg_skip_scanlines", "jpeg_finish_decompress",        \
        "jpeg_destroy_decompress", "jpeg_resync_to_restart"

#endif
