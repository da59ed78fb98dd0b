/* JPEG: headers read by hand, pixels by a libjpeg that is found at run time. */
#ifndef HEADRACE_JPEG_H
#define HEADRACE_JPEG_H

#include <stddef.h>
#include <stdint.h>

#include "resample.h"

/* Statuses of a job. From STATUS_LIBJPEG on: plus libjpeg's own message code. */
enum {
    STATUS_OK = 0,
    STATUS_TRUNCATED = 1,
    STATUS_TOO_LARGE = 2,
    STATUS_NOT_NATIVE = 3,
    STATUS_MISMATCH = 4,
    STATUS_BAD_JOB = 5,
    STATUS_NO_MEMORY = 6,
    STATUS_TOO_MANY_SCANS = 7,
    STATUS_LIBJPEG = 100,
};

typedef struct {
    int kind;                    /* 0: a JPEG that this module decodes; 1: anything else */
    int width, height;           /* as shown, after orientation */
    int orientation, components; /* EXIF orientation 1..8 */
    int stored_width, stored_height;
    int progressive, max_h; /* horizontal sampling of the component that has most */
    size_t scan;            /* where the first scan starts; 0: no scan was found */
    size_t least;           /* bytes from there on without which no such image can be */
    size_t frame, frame_size; /* the frame's segment, without marker and length */
    int sequential;           /* Huffman codes, not progressive */
    unsigned restarts;        /* MCUs between restart markers; 0: there are none */
} Header;

/* Reads markers up to the first scan; touches nothing outside of the bytes. */
void header_read(const uint8_t *bytes, size_t size, Header *header);
/* Whether a JPEG of so many bytes cannot hold what its header claims; it is of kind 1. */
int header_too_short(const Header *header, size_t size);

/* EXIF orientation as: first mirror each shown axis where asked, then transpose, gives the stored position.
 */
static inline int orientation_transposes(int o) { return o >= 5; }
static inline int orientation_mirrors_x(int o) { return o == 2 || o == 3 || o == 6 || o == 7; }
static inline int orientation_mirrors_y(int o) { return o == 3 || o == 4 || o == 7 || o == 8; }

/* The functions that a libjpeg must have, NULL after the last. */
extern const char *const library_calls[];
/* Takes the addresses of those functions in a libjpeg for decoders made from now on. Returns NULL, or what is
 * wrong with it. */
const char *library_use(const char *path, void *const *calls);
/* The interface that it has: 62, 70 or 80. */
int library_version(void);

/* Whether scans are read by scan.c where they can be, from now on; as a rule they are. */
void decoder_scans(int own);

typedef struct Decoder Decoder;

/* NULL when no library is loaded, or there is no memory. */
Decoder *decoder_new(void);
void decoder_free(Decoder *decoder);
/* MCUs of the last image whose codes were not read by libjpeg. */
unsigned decoder_own_mcus(const Decoder *decoder);
/* libjpeg's words for the last failure. */
const char *decoder_message(const Decoder *decoder);

/* The part of a stored image that is wanted, in pixels after scaling down by `scale` (1, 2, 4 or 8). */
typedef struct {
    int scale, channels;
    int x0, y0, x1, y1;
} Region;

/* Decodes a region; `body` is called once and takes rows from decoder_row. Returns a status. */
typedef void (*DecodeBody)(void *context, Decoder *decoder);
int decoder_run(Decoder *decoder, const uint8_t *bytes, size_t size, const Header *header,
                const Region *region, DecodeBody body, void *context);

/* Row y of the running region, y never decreasing, starting at column decoder_left (at or before the region's
 * x0). Does not return on error. */
const uint8_t *decoder_row(Decoder *decoder, int y);
int decoder_left(const Decoder *decoder);
/* The next row, decoded to `out` (the region's width), starting with the region's y0. */
void decoder_row_into(Decoder *decoder, uint8_t *out);
/* Bytes that may be read from what decoder_row returns. */
size_t decoder_row_bytes(const Decoder *decoder);

#endif
