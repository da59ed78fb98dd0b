/* Huffman codes of a baseline scan, several bits at a time.
 *
 * The next ten bits give a code, the bits that follow it and so the coefficient in one step, where all of these are
 * in them, as they mostly are. What is damaged or rare in any way is not judged here. */
#include "scan.h"

#include <string.h>

/* (so that they are compiled for the machine of the function that calls them) */
#define INLINE __attribute__((always_inline)) static inline

/* An entry of a table: one coefficient, or two where the codes of both are among the bits that were looked at.
 *
 *  0   bits to take for both           16  places from the last coefficient to the first of these
 *  8   bits to take for the first      24  from that one to the second; 0: there is none
 *  13  flags                           32  the coefficients, 16 bits each
 *
 * STOP: the block ends after them; with no place for the first, at once. MORE: the bits of the only one are not
 * among those looked at, its number says how many they are. LONG: nor is the whole code. */
enum { STOP = 1 << 13, MORE = 1 << 14, LONG = 1 << 15 };

INLINE uint64_t entry_new(int take, int flags, int step, int value) {
    return (uint64_t)take | (uint64_t)take << 8 | (uint64_t)flags | (uint64_t)step << 16 |
           (uint64_t)(uint16_t)value << 32;
}

INLINE int entry_take(uint64_t entry) { return (int)(entry & 31); }
INLINE int entry_take_first(uint64_t entry) { return (int)(entry >> 8 & 31); }
INLINE int entry_step(uint64_t entry) { return (int)(entry >> 16 & 255); }
INLINE int entry_second_step(uint64_t entry) { return (int)(entry >> 24 & 255); }
INLINE int entry_value(uint64_t entry) { return (int16_t)(entry >> 32); }
INLINE int entry_second_value(uint64_t entry) { return (int16_t)(entry >> 48); }

static const uint8_t NATURAL[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* The number that `size` bits stand for. */
INLINE int extend(int bits, int size) { return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits; }

/* A symbol, for a code of `length` bits, when the bits that follow it are `rest`, of which `known` are there. */
static uint64_t entry_of(const ScanTable *table, unsigned symbol, int length, unsigned rest, int known) {
    int size = table->is_dc ? (int)symbol : (int)(symbol & 15), run = table->is_dc ? 0 : (int)(symbol >> 4);
    if (size == 0 && !table->is_dc && run != 15) return entry_new(length, STOP, 0, 0);
    if (size == 0) return entry_new(length, 0, run + 1, 0); /* sixteen zeros, the last of them in its place */
    if (size > known) return entry_new(length, MORE, run + 1, size);
    return entry_new(length + size, 0, run + 1, extend((int)(rest >> (known - size)), size));
}

/* The entry for bits whose first symbol is `first`, together with the one that follows, if that is whole. */
static uint64_t entry_pair(uint64_t first, uint64_t second) {
    int take = entry_take(first) + entry_take(second);
    if (first & (STOP | MORE | LONG) || second & (MORE | LONG) || take > SCAN_LOOK) return first;
    return (first & ~(uint64_t)31) | (uint64_t)take | (second & STOP) | (uint64_t)entry_step(second) << 24 |
           (uint64_t)(uint16_t)entry_value(second) << 48;
}

static int table_fill(ScanTable *table) {
    unsigned code = 0, at = 0;
    memset(table->look, 0, sizeof table->look);
    for (int length = 1; length <= 16; length++) {
        unsigned count = table->counts[length];
        if (at + count > 256 || code + count > 1u << length) return 0;
        table->offset[length] = (int)at - (int)code;
        for (unsigned i = 0; i < count; i++, at++, code++) {
            if (table->is_dc && table->symbols[at] > 15) return 0;
            if (length > SCAN_LOOK) continue;
            int known = SCAN_LOOK - length;
            for (unsigned rest = 0; rest < 1u << known; rest++)
                table->look[code << known | rest] = entry_of(table, table->symbols[at], length, rest, known);
        }
        table->limit[length] = code << (16 - length);
        code <<= 1;
    }
    for (unsigned i = 0; i < 1 << SCAN_LOOK; i++)
        if (table->look[i] == 0) table->look[i] = LONG;
    if (table->is_dc) return 1;
    uint64_t single[1 << SCAN_LOOK];
    memcpy(single, table->look, sizeof single);
    for (unsigned i = 0; i < 1 << SCAN_LOOK; i++)
        table->look[i] = entry_pair(single[i], single[i << entry_take(single[i]) & ((1 << SCAN_LOOK) - 1)]);
    return 1;
}

static int table_use(ScanTable *table, const LibraryTable *given, int is_dc) {
    if (given == NULL) return 0;
    if (table->good && table->is_dc == is_dc && memcmp(table->counts, given, sizeof *given) == 0) return 1;
    memcpy(table->counts, given->counts, sizeof table->counts);
    memcpy(table->symbols, given->symbols, sizeof table->symbols);
    table->is_dc = is_dc;
    return table->good = table_fill(table);
}

int scan_begin(Scan *scan, const uint8_t *sof, size_t sof_size, const uint8_t *sos, size_t sos_size,
               LibraryTable *const *dc, LibraryTable *const *ac, unsigned interval, const uint8_t *data,
               const uint8_t *end) {
    if (sof_size < 6 || sos_size < 1) return 0;
    int components = sof[5];
    if (components < 1 || components > SCAN_COMPONENTS || sos[0] != components) return 0;
    if (sof_size < 6 + 3 * (size_t)components || sos_size != 4 + 2 * (size_t)components) return 0;
    const uint8_t *rest = sos + 1 + 2 * components; /* from the first coefficient to the last, all of their bits */
    if (rest[0] != 0 || rest[1] != 63 || rest[2] != 0) return 0;
    scan->blocks = 0;
    int widest = 1;
    for (int i = 0; i < components; i++) {
        const uint8_t *frame = sof + 6 + 3 * i;
        int h = frame[1] >> 4, v = frame[1] & 15, dc_at = sos[2 + 2 * i] >> 4, ac_at = sos[2 + 2 * i] & 15;
        if (frame[0] != sos[1 + 2 * i] || h < 1 || v < 1 || dc_at >= SCAN_COMPONENTS || ac_at >= SCAN_COMPONENTS)
            return 0;
        if (!table_use(&scan->dc[dc_at], dc[dc_at], 1) || !table_use(&scan->ac[ac_at], ac[ac_at], 0)) return 0;
        int blocks = components == 1 ? 1 : h * v;
        if (scan->blocks + blocks > SCAN_BLOCKS) return 0;
        for (int k = 0; k < blocks; k++) {
            scan->block[scan->blocks].component = i;
            scan->block[scan->blocks].dc = &scan->dc[dc_at];
            scan->block[scan->blocks++].ac = &scan->ac[ac_at];
        }
        if (components > 1 && h > widest) widest = h;
    }
    int width = sof[3] << 8 | sof[4];
    scan->columns = (width + 8 * widest - 1) / (8 * widest);
    scan->first = scan->column = 0;
    scan->last = scan->columns - 1;
    scan->interval = scan->until = interval;
    scan->restarts = 0;
    memset(scan->value, 0, sizeof scan->value);
    scan->at = data;
    scan->end = end;
    scan->bits = 0;
    scan->count = scan->ended = 0;
    return 1;
}

void scan_columns(Scan *scan, int mcu_width, int x0, int x1) {
    scan->first = x0 / mcu_width;
    scan->last = (x1 - 1) / mcu_width;
}

/* What is being read, in registers. */
typedef struct {
    const uint8_t *at, *end;
    uint64_t bits;
    int count, ended;
} Bits;

INLINE uint64_t big_endian(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* One byte after the other: a 0xff has a zero after it, which is no data, or is the start of a marker. */
static __attribute__((noinline)) void bits_fill_slowly(Bits *b) {
    while (b->count <= 56 && !b->ended) {
        if (b->at == b->end || (*b->at == 0xff && (b->end - b->at < 2 || b->at[1] != 0))) {
            b->ended = 1;
            return;
        }
        b->bits |= (uint64_t)*b->at << (56 - b->count);
        b->count += 8;
        b->at += *b->at == 0xff ? 2 : 1;
    }
}

/* At least 32 bits, if there are as many. */
INLINE void bits_fill(Bits *b) {
    if (__builtin_expect(b->count >= 32, 1)) return;
    if (__builtin_expect(b->end - b->at >= 8 && !b->ended, 1)) {
        uint64_t word = big_endian(b->at), others = ~word;
        if (((others - 0x0101010101010101u) & word & 0x8080808080808080u) == 0) { /* no 0xff among them */
            b->bits |= word >> b->count;
            int more = (63 - b->count) >> 3;
            b->at += more;
            b->count += 8 * more;
            return;
        }
    }
    Bits slow = *b; /* (whose address is taken: the other one stays in registers) */
    bits_fill_slowly(&slow);
    *b = slow;
}

INLINE unsigned bits_look(const Bits *b, int count) { return (unsigned)(b->bits >> (64 - count)); }

INLINE void bits_take(Bits *b, int count) {
    b->bits <<= count;
    b->count -= count;
}

/* A code that is longer than what is looked at; LONG: there is none such. */
static __attribute__((noinline)) uint64_t long_entry(const ScanTable *table, unsigned sixteen) {
    for (int length = SCAN_LOOK + 1; length <= 16; length++) {
        if (sixteen >= table->limit[length]) continue;
        unsigned at = (unsigned)((int)(sixteen >> (16 - length)) + table->offset[length]);
        return entry_of(table, table->symbols[at & 255], length, 0, 0);
    }
    return LONG;
}

/* The rest of an entry that is not whole: it is taken, and holds its coefficient. */
INLINE uint64_t entry_rest(Bits *b, const ScanTable *table, uint64_t entry) {
    if (entry & LONG) entry = long_entry(table, bits_look(b, 16));
    bits_take(b, entry_take(entry));
    if (!(entry & MORE)) return entry;
    int size = entry_value(entry), value = extend((int)bits_look(b, size), size);
    bits_take(b, size);
    return entry_new(0, 0, entry_step(entry), value);
}

/* One block. `out`: NULL where it is not wanted. Returns 0 at anything unusual. */
INLINE int block_read(Bits *b, const ScanTable *dc, const ScanTable *ac, int *last, int16_t *out) {
    bits_fill(b);
    uint64_t entry = dc->look[bits_look(b, SCAN_LOOK)];
    if (entry & (MORE | LONG)) entry = entry_rest(b, dc, entry);
    else bits_take(b, entry_take(entry));
    int value = entry_value(entry) + *last;
    if (entry & LONG || value < -32768 || value > 32767) return 0;
    *last = value;
    if (out) out[0] = (int16_t)value;
    for (int k = 0; k < 63;) {
        bits_fill(b);
        entry = ac->look[bits_look(b, SCAN_LOOK)];
        int first = k + entry_step(entry), second = first + entry_second_step(entry);
        if (__builtin_expect(entry & (MORE | LONG) || second > 62, 0)) { /* one by one */
            if (entry & (MORE | LONG)) entry = entry_rest(b, ac, entry);
            else bits_take(b, entry_take_first(entry));
            if (entry & LONG) return 0;
            if (entry_step(entry) == 0) break;
            k += entry_step(entry);
            if (k > 63) return 0;
            if (out) out[NATURAL[k]] = (int16_t)entry_value(entry);
            continue;
        }
        bits_take(b, entry_take(entry));
        if (entry & STOP) {
            if (out && entry_step(entry)) out[NATURAL[first]] = (int16_t)entry_value(entry);
            break;
        }
        if (out) { /* where there is no second, the first takes its place */
            out[NATURAL[second]] = (int16_t)entry_second_value(entry);
            out[NATURAL[first]] = (int16_t)entry_value(entry);
        }
        k = second;
    }
    return b->count >= 0;
}

/* The marker between two intervals; it follows at once, after the rest of a byte. */
static int scan_restart(Scan *scan) {
    Bits b = {scan->at, scan->end, scan->bits, scan->count, scan->ended};
    bits_fill_slowly(&b);
    if (!b.ended || b.count > 7 || b.end - b.at < 2 || b.at[1] != 0xd0 + scan->restarts % 8) return 0;
    scan->at = b.at + 2;
    scan->bits = 0;
    scan->count = scan->ended = 0;
    scan->restarts++;
    scan->until = scan->interval;
    memset(scan->value, 0, sizeof scan->value);
    return 1;
}

INLINE int mcu_read(Scan *scan, int16_t (**blocks)[64]) {
    if (scan->interval && scan->until == 0 && !scan_restart(scan)) return 0;
    int wanted = blocks != NULL && scan->column >= scan->first && scan->column <= scan->last;
    Bits b = {scan->at, scan->end, scan->bits, scan->count, scan->ended};
    for (int k = 0; k < scan->blocks; k++) {
        int *last = &scan->value[scan->block[k].component];
        if (wanted ? !block_read(&b, scan->block[k].dc, scan->block[k].ac, last, *blocks[k])
                   : !block_read(&b, scan->block[k].dc, scan->block[k].ac, last, NULL))
            return 0;
    }
    scan->at = b.at;
    scan->bits = b.bits;
    scan->count = b.count;
    scan->ended = b.ended;
    if (++scan->column == scan->columns) scan->column = 0;
    if (scan->interval) scan->until--;
    return 1;
}

static int mcu_plain(Scan *scan, int16_t (**blocks)[64]) { return mcu_read(scan, blocks); }

#if defined(__x86_64__)
/* With shifts that take their count from any register, of which every coefficient has several. */
__attribute__((target("bmi,bmi2"))) static int mcu_bmi(Scan *scan, int16_t (**blocks)[64]) {
    return mcu_read(scan, blocks);
}
#define MCU (__builtin_cpu_supports("bmi2") ? mcu_bmi : mcu_plain)
#else
#define MCU mcu_plain
#endif

int scan_mcu(Scan *scan, int16_t (**blocks)[64]) { return MCU(scan, blocks); }
