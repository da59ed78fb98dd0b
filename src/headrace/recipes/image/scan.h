/* The entropy-coded data of a JPEG with one scan of Huffman codes, read faster than libjpeg does. */
#ifndef HEADRACE_SCAN_H
#define HEADRACE_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { SCAN_LOOK = 10, SCAN_BLOCKS = 10, SCAN_COMPONENTS = 4 };

/* A Huffman table. */
typedef struct {
    uint8_t counts[17], symbols[256]; /* what it was made from: codes of each length, and what they stand for */
    int is_dc, good;
    uint64_t look[1 << SCAN_LOOK]; /* by the next bits of the data */
    uint32_t limit[18];            /* the first 16 bits that are no code of this length, or a shorter one */
    int offset[17];
} ScanTable;

typedef struct {
    ScanTable dc[SCAN_COMPONENTS], ac[SCAN_COMPONENTS];
    int blocks; /* in an MCU */
    struct {
        int component;
        const ScanTable *dc, *ac;
    } block[SCAN_BLOCKS];
    int columns, first, last; /* MCUs in a row, and which of them are wanted */
    unsigned interval;        /* MCUs between restarts; 0: there are none */

    const uint8_t *at, *end;
    uint64_t bits; /* the next ones, from the highest down */
    int count;     /* how many of them there are */
    int ended;     /* no more bytes come before a marker */
    int value[SCAN_COMPONENTS];
    int column;
    unsigned until; /* MCUs before the next restart */
    unsigned restarts;
} Scan;

/* The tables of a library, as libjpeg keeps them. */
typedef struct {
    uint8_t counts[17], symbols[256];
} LibraryTable;

/* Begins to read. `sof` and `sos` are the contents of those segments, checked here; `data` is what follows. Returns
 * 0 where it is not for this reader. Tables of the last image are kept and used again if they are the same. */
int scan_begin(Scan *scan, const uint8_t *sof, size_t sof_size, const uint8_t *sos, size_t sos_size,
               LibraryTable *const *dc, LibraryTable *const *ac, unsigned interval, const uint8_t *data,
               const uint8_t *end);

/* Only columns of pixels from x0 up to x1 are wanted, of which an MCU has `mcu_width`. */
void scan_columns(Scan *scan, int mcu_width, int x0, int x1);

/* Reads one MCU into blocks of zeros; NULL: nowhere. Returns 0 at anything unusual. */
int scan_mcu(Scan *scan, int16_t (**blocks)[64]);

#endif
