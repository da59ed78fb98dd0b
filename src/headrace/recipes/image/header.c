/* JPEG markers and the EXIF orientation, without libjpeg. Every offset is checked: the bytes are untrusted.
 */
#include <string.h>

#include "jpeg.h"

static unsigned be16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

static uint32_t tiff16(const uint8_t *p, int little) {
    return little ? (uint32_t)p[1] << 8 | p[0] : (uint32_t)p[0] << 8 | p[1];
}

static uint32_t tiff32(const uint8_t *p, int little) {
    return little ? tiff16(p + 2, 1) << 16 | tiff16(p, 1) : tiff16(p, 0) << 16 | tiff16(p + 2, 0);
}

/* The orientation in the payload of an APP1 segment; 0 when it says nothing. */
static int exif_orientation(const uint8_t *p, size_t size) {
    enum { ORIENTATION = 0x0112, SHORT = 3, LONG = 4, ENTRY = 12 };
    if (size < 6 + 8 || memcmp(p, "Exif\0", 6) != 0) return 0;
    p += 6;
    size -= 6;
    int little = p[0] == 'I' && p[1] == 'I';
    if (!little && !(p[0] == 'M' && p[1] == 'M')) return 0;
    if (tiff16(p + 2, little) != 42) return 0;
    size_t at = tiff32(p + 4, little);
    if (at > size - 2) return 0;
    size_t count = tiff16(p + at, little);
    at += 2;
    for (; count > 0 && size - at >= ENTRY; count--, at += ENTRY) {
        if (tiff16(p + at, little) != ORIENTATION) continue;
        uint32_t type = tiff16(p + at + 2, little);
        uint32_t value = type == SHORT  ? tiff16(p + at + 8, little)
                         : type == LONG ? tiff32(p + at + 8, little)
                                        : 0;
        return value >= 1 && value <= 8 ? (int)value : 0;
    }
    return 0;
}

static int is_frame(unsigned marker) {
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

/* Baseline, extended and progressive, with Huffman or arithmetic coding. */
static int is_native_frame(unsigned marker) { return marker <= 0xc2 || marker == 0xc9 || marker == 0xca; }

/* A file can claim what it does not hold, to get memory. */
int header_too_short(const Header *header, size_t size) {
    return header->scan != 0 && size - header->scan < header->least;
}

static size_t parts(size_t whole, size_t part) { return (whole + part - 1) / part; }

/* The samplings of a frame's components, and so the number of blocks. Each takes a code of a bit or more, and
 * one more at least where all of its coefficients are in one scan. Arithmetic coding has no such bound; a bit
 * for 64 blocks is far below what photographs take. */
static void read_samplings(const uint8_t *p, size_t length, unsigned marker, Header *header) {
    size_t components = p[5], max_h = 1, max_v = 1, blocks = 0;
    if (components > (length - 6) / 3) components = (length - 6) / 3;
    for (size_t i = 0; i < components; i++) {
        size_t h = p[7 + 3 * i] >> 4, v = p[7 + 3 * i] & 15;
        if (h > max_h) max_h = h;
        if (v > max_v) max_v = v;
    }
    for (size_t i = 0; i < components; i++) {
        size_t h = p[7 + 3 * i] >> 4, v = p[7 + 3 * i] & 15;
        blocks += parts((size_t)header->stored_width * h, 8 * max_h) *
                  parts((size_t)header->stored_height * v, 8 * max_v);
    }
    header->max_h = (int)max_h;
    header->least = marker >= 0xc9 ? blocks / 512 : marker == 0xc2 ? blocks / 8 : blocks / 4;
}

void header_read(const uint8_t *bytes, size_t size, Header *header) {
    enum { SOS = 0xda, EOI = 0xd9, APP1 = 0xe1, DRI = 0xdd, RST0 = 0xd0, SOI = 0xd8, TEM = 0x01 };
    memset(header, 0, sizeof *header);
    header->kind = 1;
    header->orientation = 1;
    if (size < 4 || bytes[0] != 0xff || bytes[1] != SOI) return;
    size_t at = 2;
    int orientation = 0, frames = 0;
    while (size - at >= 4) {
        if (bytes[at] != 0xff) { /* libjpeg, too, looks for the next marker after garbage */
            at++;
            continue;
        }
        unsigned marker = bytes[at + 1];
        if (marker == 0xff || marker == 0) {
            at += marker == 0xff ? 1 : 2;
            continue;
        }
        if ((marker >= RST0 && marker <= SOI) || marker == TEM) {
            at += 2;
            continue;
        }
        if (marker == EOI) break;
        size_t length = be16(bytes + at + 2);
        if (length < 2) break;
        if (marker == SOS) {
            header->scan = at;
            break;
        }
        const uint8_t *p = bytes + at + 4;
        if (length > size - at - 2) break;
        if (is_frame(marker) && length >= 8) {
            header->stored_height = (int)be16(p + 1);
            header->stored_width = (int)be16(p + 3);
            header->components = p[5];
            header->kind = !(is_native_frame(marker) && p[0] == 8 && (p[5] == 1 || p[5] == 3) &&
                             header->stored_width > 0 && header->stored_height > 0);
            header->progressive = marker == 0xc2 || marker == 0xca;
            header->sequential = marker <= 0xc1;
            header->frame = at + 4;
            header->frame_size = length - 2;
            read_samplings(p, length - 2, marker, header);
            frames++;
        } else if (marker == DRI && length == 4) {
            header->restarts = be16(p);
        } else if (marker == APP1 && orientation == 0) {
            orientation = exif_orientation(p, length - 2);
        }
        at += 2 + length;
    }
    if (frames != 1 || header_too_short(header, size)) header->kind = 1;
    if (orientation) header->orientation = orientation;
    if (header->kind != 0) {
        header->components = 0;
        return;
    }
    int turned = orientation_transposes(header->orientation);
    header->width = turned ? header->stored_height : header->stored_width;
    header->height = turned ? header->stored_width : header->stored_height;
}
