/* Inner loops of filters for NEON with dot products: each 32-bit lane takes four products of bytes in one step.
 *
 * A weight of 16 bits is two bytes, of which the upper one may be negative: a sum is that of the products of lower
 * ones, and 256 times that of upper ones. Where upper bytes are negative, pixels have to be signed, too: they are
 * taken less 128, and sums begin with what that makes. */
#include <string.h>

#include "resample.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
int has_dot(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#else
int has_dot(void) { return 0; }
#endif

#if defined(__clang__)
#define DOT __attribute__((target("dotprod")))
#else
#define DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define DOT_INLINE DOT __attribute__((always_inline)) static inline

/* Groups of four lanes, which are of two pixels, and four of their taps: 16 bytes of places, of lower and of upper
 * bytes of weights. */
enum { GROUP_LANES = 4, STEP_TAPS = 4, TABLE_BYTES = 16, WINDOW_BYTES = 32, GROUPS_AT_ONCE = 4 };

int filter_plan_dot(Windows *windows, const Taps *taps, int w, int x_offset, size_t row_bytes) {
    enum { ROUND = GROUP_LANES * GROUPS_AT_ONCE };
    int lanes = 3 * w, groups = (lanes + ROUND - 1) / ROUND * GROUPS_AT_ONCE, steps = taps->stride / STEP_TAPS;
    if (row_bytes < WINDOW_BYTES) return 0;
    size_t all = (size_t)groups * (size_t)steps, starts = (size_t)groups * GROUP_LANES;
    size_t size = all * (3 * TABLE_BYTES + sizeof(int32_t)) + starts * sizeof(int32_t);
    uint8_t *memory = buffer_need(&windows->memory, size);
    if (memory == NULL) return 0; /* the other kernels need none */
    windows->groups = groups;
    windows->steps = steps;
    windows->is_signed = 0;
    windows->index = memory;
    windows->weight = memory + all * TABLE_BYTES;
    windows->start = (int32_t *)(memory + all * 3 * TABLE_BYTES);
    windows->base = windows->start + starts;
    memset(memory, 0, size);
    const int32_t half = 1 << taps->bits >> 1;
    for (int first = 0; first < lanes; first += GROUP_LANES) {
        int until = first + GROUP_LANES < lanes ? first + GROUP_LANES : lanes, g = first / GROUP_LANES;
        for (int step = 0; step < steps; step++) {
            size_t at = (size_t)g * (size_t)steps + (size_t)step;
            int from = step * STEP_TAPS;
            int32_t base =
                window_base(taps, first, until - 1, from, from + STEP_TAPS, x_offset, row_bytes, WINDOW_BYTES);
            if (base < 0) return 0;
            windows->base[at] = base;
            for (int lane = first; lane < until; lane++) {
                int i = lane / 3, begin = 3 * (taps->first[i] - x_offset) + lane % 3 - base;
                const int16_t *weight = taps->weight + (size_t)i * (size_t)taps->stride;
                size_t place = at * TABLE_BYTES + (size_t)(lane - first) * STEP_TAPS;
                for (int k = from; k < from + STEP_TAPS && k < taps->count[i]; k++, place++) {
                    windows->index[place] = (uint8_t)(begin + 3 * k);
                    uint8_t *pair = windows->weight + place + at * TABLE_BYTES;
                    pair[0] = (uint8_t)(weight[k] & 255);
                    pair[TABLE_BYTES] = (uint8_t)(weight[k] >> 8);
                    windows->start[lane] += (weight[k] >> 8) * 128 * 256;
                    windows->is_signed |= weight[k] < 0;
                }
            }
        }
    }
    for (int lane = 0; lane < lanes; lane++) windows->start[lane] += half;
    return 1;
}

typedef struct {
    uint32x4_t low;
    int32x4_t high;
} Sums;

/* Adds the products of four lanes' next four taps. */
DOT_INLINE Sums add_dot(Sums sums, uint8x16_t pixels, uint8x16_t low, uint8x16_t high, int is_signed) {
    sums.low = vdotq_u32(sums.low, pixels, low);
    if (is_signed) {
        int8x16_t less = vreinterpretq_s8_u8(veorq_u8(pixels, vdupq_n_u8(0x80)));
        sums.high = vdotq_s32(sums.high, less, vreinterpretq_s8_u8(high));
    } else {
        sums.high = vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(sums.high), pixels, high));
    }
    return sums;
}

DOT_INLINE int16x4_t end_sums(Sums sums, int32x4_t shift) {
    int32x4_t sum = vaddq_s32(vreinterpretq_s32_u32(sums.low), vshlq_n_s32(sums.high, 8));
    return vqmovn_s32(vshlq_s32(sum, shift));
}

DOT_INLINE uint8x16_t to_bytes(Sums a, Sums b, Sums c, Sums d, int32x4_t shift) {
    int16x8_t one = vcombine_s16(end_sums(a, shift), end_sums(b, shift));
    int16x8_t two = vcombine_s16(end_sums(c, shift), end_sums(d, shift));
    return vcombine_u8(vqmovun_s16(one), vqmovun_s16(two));
}

DOT_INLINE Sums group_of(const uint8_t *row, const int32_t *base, const uint8_t *index, const uint8_t *weight,
                         const int32_t *start, int32x4_t half, int steps, int is_signed) {
    Sums sums = {vreinterpretq_u32_s32(is_signed ? vld1q_s32(start) : half), vdupq_n_s32(0)};
    for (int step = 0; step < steps; step++) {
        uint8x16x2_t window = vld1q_u8_x2(row + base[step]);
        uint8x16_t pixels = vqtbl2q_u8(window, vld1q_u8(index + step * TABLE_BYTES));
        const uint8_t *pair = weight + 2 * step * TABLE_BYTES;
        sums = add_dot(sums, pixels, vld1q_u8(pair), vld1q_u8(pair + TABLE_BYTES), is_signed);
    }
    return sums;
}

DOT_INLINE void windows_of(const uint8_t *row, const Windows *windows, int steps, int is_signed, int bits,
                           uint8_t *out) {
    const int32x4_t half = vdupq_n_s32(1 << bits >> 1), shift = vdupq_n_s32(-bits);
    const uint8_t *index = windows->index, *weight = windows->weight;
    const int32_t *base = windows->base, *start = windows->start;
    for (int g = 0; g < windows->groups; g += GROUPS_AT_ONCE, out += GROUPS_AT_ONCE * GROUP_LANES) {
        Sums sums[GROUPS_AT_ONCE];
        for (int k = 0; k < GROUPS_AT_ONCE; k++) {
            sums[k] = group_of(row, base, index, weight, start, half, steps, is_signed);
            base += steps;
            index += steps * TABLE_BYTES;
            weight += 2 * steps * TABLE_BYTES;
            start += GROUP_LANES;
        }
        vst1q_u8(out, to_bytes(sums[0], sums[1], sums[2], sums[3], shift));
    }
}

DOT void filter_windows_dot(const uint8_t *row, const Windows *windows, int bits, uint8_t *out) {
    if (windows->is_signed) windows_of(row, windows, windows->steps, 1, bits, out);
    else if (windows->steps == 1) windows_of(row, windows, 1, 0, bits, out);
    else if (windows->steps == 2) windows_of(row, windows, 2, 0, bits, out);
    else windows_of(row, windows, windows->steps, 0, bits, out);
}

/* Four rows at a time, whose bytes are brought together. */
DOT_INLINE void down_of(const uint8_t *const *rows, int steps, const int16_t *weight, int is_signed, int bits,
                        uint8_t *out, int n) {
    const int32x4_t shift = vdupq_n_s32(-bits);
    int32_t begin = 1 << bits >> 1;
    for (int k = 0; is_signed && k < steps * STEP_TAPS; k++) begin += (weight[k] >> 8) * 128 * 256;
    const Sums first = {vdupq_n_u32((uint32_t)begin), vdupq_n_s32(0)};
    for (int at = 0; at < n; at += 16) {
        Sums a = first, b = first, c = first, d = first;
        for (int step = 0; step < steps; step++) {
            const uint8_t *const *four = rows + step * STEP_TAPS;
            const int16_t *w = weight + step * STEP_TAPS;
            uint8x8_t bytes = vld1_u8((const uint8_t *)w); /* lower and upper ones in turn */
            uint8x8_t lower = vuzp1_u8(bytes, bytes), upper = vuzp2_u8(bytes, bytes);
            uint8x16_t low = vcombine_u8(lower, lower), high = vcombine_u8(upper, upper);
            uint8x16_t one = vld1q_u8(four[0] + at), two = vld1q_u8(four[1] + at);
            uint8x16_t three = vld1q_u8(four[2] + at), last = vld1q_u8(four[3] + at);
            uint16x8_t one_low = vreinterpretq_u16_u8(vzip1q_u8(one, two));
            uint16x8_t one_high = vreinterpretq_u16_u8(vzip2q_u8(one, two));
            uint16x8_t two_low = vreinterpretq_u16_u8(vzip1q_u8(three, last));
            uint16x8_t two_high = vreinterpretq_u16_u8(vzip2q_u8(three, last));
            a = add_dot(a, vreinterpretq_u8_u16(vzip1q_u16(one_low, two_low)), low, high, is_signed);
            b = add_dot(b, vreinterpretq_u8_u16(vzip2q_u16(one_low, two_low)), low, high, is_signed);
            c = add_dot(c, vreinterpretq_u8_u16(vzip1q_u16(one_high, two_high)), low, high, is_signed);
            d = add_dot(d, vreinterpretq_u8_u16(vzip2q_u16(one_high, two_high)), low, high, is_signed);
        }
        uint8x16_t bytes = to_bytes(a, b, c, d, shift);
        if (n - at >= 16) {
            vst1q_u8(out + at, bytes);
        } else {
            uint8_t rest[16];
            vst1q_u8(rest, bytes);
            memcpy(out + at, rest, (size_t)(n - at));
        }
    }
}

DOT void filter_down_dot(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                         int bits, uint8_t *out, int n) {
    enum { MOST_STEPS = 16 };
    const uint8_t *row[MOST_STEPS * STEP_TAPS];
    int steps = (count + STEP_TAPS - 1) / STEP_TAPS, is_signed = 0;
    if (steps > MOST_STEPS) {
        filter_down_plain(rows, stride, ring, first, count, weight, bits, out, n);
        return;
    }
    for (int k = 0, place = first % ring; k < steps * STEP_TAPS; k++) { /* (after the last come some of weight 0) */
        row[k] = rows + (size_t)place * stride;
        is_signed |= weight[k] < 0;
        if (k + 1 < count) place = place + 1 == ring ? 0 : place + 1;
    }
    if (is_signed) down_of(row, steps, weight, 1, bits, out, n);
    else if (steps == 1) down_of(row, 1, weight, 0, bits, out, n);
    else down_of(row, steps, weight, 0, bits, out, n);
}
#endif
