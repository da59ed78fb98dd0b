/* The inner loops of filters, in plain C and for NEON, SSE4.1 and AVX2. All give the same bits. */
#include <string.h>

#include "resample.h"

static inline uint8_t to_byte(int32_t sum, int bits) {
    sum >>= bits;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Output pixels from `from` to `until`. */
void filter_across_plain(const uint8_t *row, const Taps *taps, int x_offset, int source_channels, int channels,
                         int from, int until, uint8_t *restrict out) {
    const int bits = taps->bits;
    const int32_t half = 1 << bits >> 1;
    for (int i = from; i < until; i++) {
        const uint8_t *p = row + (ptrdiff_t)(taps->first[i] - x_offset) * source_channels;
        const int16_t *weight = taps->weight + (size_t)i * (size_t)taps->stride;
        int count = taps->count[i];
        if (source_channels == 3) {
            int32_t a = half, b = half, c = half;
            for (int k = 0; k < count; k++, p += 3) {
                a += p[0] * weight[k];
                b += p[1] * weight[k];
                c += p[2] * weight[k];
            }
            out[3 * i] = to_byte(a, bits);
            out[3 * i + 1] = to_byte(b, bits);
            out[3 * i + 2] = to_byte(c, bits);
        } else {
            int32_t a = half;
            for (int k = 0; k < count; k++) a += p[k] * weight[k];
            for (int c = 0; c < channels; c++) out[channels * i + c] = to_byte(a, bits);
        }
    }
}

void filter_down_plain(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                       int bits, uint8_t *out, int n) {
    for (int at = 0; at < n; at += FILTER_BLOCK) {
        int32_t sum[FILTER_BLOCK];
        uint8_t bytes[FILTER_BLOCK];
        for (int i = 0; i < FILTER_BLOCK; i++) sum[i] = 1 << bits >> 1;
        for (int k = 0, place = first % ring; k < count; k++) {
            const uint8_t *row = rows + (size_t)place * stride + at;
            int16_t w = weight[k];
            for (int i = 0; i < FILTER_BLOCK; i++) sum[i] += (int16_t)row[i] * w;
            place = place + 1 == ring ? 0 : place + 1;
        }
        for (int i = 0; i < FILTER_BLOCK; i++) bytes[i] = to_byte(sum[i], bits);
        memcpy(out + at, bytes, (size_t)(n - at < FILTER_BLOCK ? n - at : FILTER_BLOCK));
    }
}

/* Pixels of three channels, whole ones in a vector, four taps at a time. Of the source as many taps are read as any
 * pixel has, those of weight 0 included, and FILTER_SLACK bytes more. */

#if defined(__aarch64__)
#include <arm_neon.h>

#define INLINE __attribute__((always_inline)) static inline
INLINE int32x4_t one_pixel(const uint8_t *p, const int16_t *weight, int fours, int32x4_t half) {
    int32x4_t one = half, two = vdupq_n_s32(0);
    for (int k = 0; k < fours; k++, p += 12, weight += 4) {
        int16x4_t w = vld1_s16(weight);
        int16x8_t a = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)));
        int16x8_t b = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p + 6)));
        one = vmlal_lane_s16(one, vget_low_s16(a), w, 0);
        two = vmlal_lane_s16(two, vget_low_s16(vextq_s16(a, a, 3)), w, 1);
        one = vmlal_lane_s16(one, vget_low_s16(b), w, 2);
        two = vmlal_lane_s16(two, vget_low_s16(vextq_s16(b, b, 3)), w, 3);
    }
    return vaddq_s32(one, two);
}

INLINE void across_fours(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, int fours,
                         uint8_t *out) {
    const int32x4_t half = vdupq_n_s32(1 << taps->bits >> 1), shift = vdupq_n_s32(-taps->bits);
    const int16_t *weight = taps->weight + (size_t)from * 4 * (size_t)fours;
    const int32_t *first = taps->first;
    row -= (ptrdiff_t)x_offset * 3;
    out += 3 * from;
    for (int i = from; i < until; i += 2, out += 6, weight += 8 * fours) {
        int both = i + 1 < until; /* at the end, the last one twice */
        int32x4_t a = one_pixel(row + 3 * (ptrdiff_t)first[i], weight, fours, half);
        int32x4_t b = one_pixel(row + 3 * (ptrdiff_t)first[i + both], weight + 4 * fours * both, fours, half);
        int16x8_t found = vcombine_s16(vqmovn_s32(vshlq_s32(a, shift)), vqmovn_s32(vshlq_s32(b, shift)));
        uint32x2_t bytes = vreinterpret_u32_u8(vqmovun_s16(found));
        uint32_t one = vget_lane_u32(bytes, 0), two = vget_lane_u32(bytes, 1);
        memcpy(out, &one, 4);
        memcpy(out + 3 * both, &two, 4);
    }
}

void filter_across_neon(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, uint8_t *out) {
    int fours = taps->stride / 4;
    if (fours == 1) across_fours(row, taps, x_offset, from, until, 1, out);
    else if (fours == 2) across_fours(row, taps, x_offset, from, until, 2, out);
    else across_fours(row, taps, x_offset, from, until, fours, out);
}

#elif defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("sse4.1"))) void filter_across_sse(const uint8_t *row, const Taps *taps, int x_offset, int from,
                                                         int until, uint8_t *out) {
    const __m128i half = _mm_set1_epi32(1 << taps->bits >> 1), shift = _mm_cvtsi32_si128(taps->bits);
    /* the first two pixels, and the two after them, as pairs of 16-bit values of one channel */
    const __m128i near = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    const __m128i far = _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    out += 3 * from;
    for (int i = from; i < until; i++, out += 3) {
        const uint8_t *p = row + (ptrdiff_t)(taps->first[i] - x_offset) * 3;
        const int16_t *weight = taps->weight + (size_t)i * (size_t)taps->stride;
        __m128i sum = half;
        for (int k = 0; k < taps->count[i]; k += 4, p += 12, weight += 4) {
            int32_t last;
            memcpy(&last, p + 8, 4);
            __m128i pixels = _mm_insert_epi32(_mm_loadl_epi64((const __m128i *)p), last, 2);
            __m128i w = _mm_loadl_epi64((const __m128i *)weight);
            sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_shuffle_epi8(pixels, near), _mm_shuffle_epi32(w, 0x00)));
            sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_shuffle_epi8(pixels, far), _mm_shuffle_epi32(w, 0x55)));
        }
        sum = _mm_sra_epi32(sum, shift);
        sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
        int32_t bytes = _mm_cvtsi128_si32(sum);
        memcpy(out, &bytes, 4);
    }
}

/* Two pixels, one in each half, of as many fours of taps as there are. */
#define AVX_INLINE __attribute__((target("avx2"), always_inline)) static inline
AVX_INLINE __m256i two_pixels(const uint8_t *p, const uint8_t *q, const int16_t *one, const int16_t *two, int fours,
                              __m256i sum) {
    const __m256i near =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i far =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    for (int k = 0; k < fours; k++, p += 12, q += 12, one += 4, two += 4) {
        __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)),
                                                 _mm_loadu_si128((const __m128i *)q), 1);
        __m256i w = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)one)),
                                            _mm_loadl_epi64((const __m128i *)two), 1);
        __m256i a = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, near), _mm256_shuffle_epi32(w, 0x00));
        __m256i b = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, far), _mm256_shuffle_epi32(w, 0x55));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
    }
    return sum;
}

/* Four pixels at a time. */
AVX_INLINE int across_fours(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, int fours,
                            uint8_t *out) {
    const __m256i half = _mm256_set1_epi32(1 << taps->bits >> 1);
    const __m128i shift = _mm_cvtsi32_si128(taps->bits);
    const __m256i together = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const size_t stride = 4 * (size_t)fours;
    const int16_t *weight = taps->weight + (size_t)from * stride;
    const int32_t *first = taps->first;
    row -= (ptrdiff_t)x_offset * 3;
    int i = from;
    for (uint8_t *at = out + 3 * from; i + 4 <= until; i += 4, at += 12, weight += 4 * stride) {
        __m256i even = two_pixels(row + 3 * (ptrdiff_t)first[i], row + 3 * (ptrdiff_t)first[i + 2], weight,
                                  weight + 2 * stride, fours, half);
        __m256i odd = two_pixels(row + 3 * (ptrdiff_t)first[i + 1], row + 3 * (ptrdiff_t)first[i + 3],
                                 weight + stride, weight + 3 * stride, fours, half);
        __m256i sums = _mm256_packs_epi32(_mm256_sra_epi32(even, shift), _mm256_sra_epi32(odd, shift));
        __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(sums, sums), together);
        /* (two bytes too many, of which the last belong to the next pixel, or to the row's padding) */
        _mm_storel_epi64((__m128i *)at, _mm256_castsi256_si128(bytes));
        _mm_storel_epi64((__m128i *)(at + 6), _mm256_extracti128_si256(bytes, 1));
    }
    return i;
}

__attribute__((target("avx2"))) void filter_across_avx(const uint8_t *row, const Taps *taps, int x_offset, int from,
                                                       int until, uint8_t *out) {
    int fours = taps->stride / 4;
    int done = fours == 1   ? across_fours(row, taps, x_offset, from, until, 1, out)
               : fours == 2 ? across_fours(row, taps, x_offset, from, until, 2, out)
                            : across_fours(row, taps, x_offset, from, until, fours, out);
    if (done < until) filter_across_sse(row, taps, x_offset, done, until, out);
}

/* Two rows at a time, as pairs of 16-bit values. */
__attribute__((target("avx2"))) void filter_down_avx(const uint8_t *rows, size_t stride, int ring, int first,
                                                     int count, const int16_t *weight, int bits, uint8_t *out,
                                                     int n) {
    enum { WIDE = 32 };
    const __m256i half = _mm256_set1_epi32(1 << bits >> 1);
    const __m128i shift = _mm_cvtsi32_si128(bits);
    const int begin = first % ring;
    for (int at = 0; at < n; at += WIDE) {
        __m256i sums[4] = {half, half, half, half};
        for (int k = 0, place = begin; k < count; k += 2) {
            const uint8_t *upper = rows + (size_t)place * stride + at;
            place = place + 1 == ring ? 0 : place + 1;
            /* (after the last of an odd number comes one of weight 0) */
            const uint8_t *lower = k + 1 < count ? rows + (size_t)place * stride + at : upper;
            place = place + 1 == ring ? 0 : place + 1;
            int32_t pair;
            memcpy(&pair, weight + k, 4);
            __m256i w = _mm256_set1_epi32(pair);
            for (int part = 0; part < 2; part++) {
                __m128i a = _mm_loadu_si128((const __m128i *)(upper + 16 * part));
                __m128i b = _mm_loadu_si128((const __m128i *)(lower + 16 * part));
                __m256i low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
                __m256i high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
                sums[2 * part] = _mm256_add_epi32(sums[2 * part], _mm256_madd_epi16(low, w));
                sums[2 * part + 1] = _mm256_add_epi32(sums[2 * part + 1], _mm256_madd_epi16(high, w));
            }
        }
        for (int part = 0; part < 4; part++) sums[part] = _mm256_sra_epi32(sums[part], shift);
        /* packing works within 128-bit halves; put the quarters back in order */
        __m256i one = _mm256_permute4x64_epi64(_mm256_packs_epi32(sums[0], sums[1]), 0xd8);
        __m256i two = _mm256_permute4x64_epi64(_mm256_packs_epi32(sums[2], sums[3]), 0xd8);
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(one, two), 0xd8);
        if (n - at >= WIDE) {
            _mm256_storeu_si256((__m256i *)(out + at), bytes);
        } else {
            uint8_t last[WIDE];
            _mm256_storeu_si256((__m256i *)last, bytes);
            memcpy(out + at, last, (size_t)(n - at));
        }
    }
}
#endif
