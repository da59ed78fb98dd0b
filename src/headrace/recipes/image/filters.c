/* Resampling with filters that widen as images shrink, as Pillow does it.
 *
 * Across first, rounded to bytes, then down. Weights are 16 bits wide, with as many fractional bits as the largest
 * of an axis leaves room for; they add up to one exactly. Pillow's have 22 bits: a value in a thousand, half way
 * between two levels, is rounded the other way. Only the rows that the next output row needs are kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resample.h"

static const double half_widths[] = {[FILTER_LINEAR] = 1.0, [FILTER_CUBIC] = 2.0, [FILTER_LANCZOS] = 3.0};

static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= 3.14159265358979323846;
    return sin(x) / x;
}

static double weight_at(int method, double x) {
    x = fabs(x);
    if (x >= half_widths[method]) return 0.0;
    switch (method) {
    case FILTER_LINEAR: return 1.0 - x;
    case FILTER_CUBIC: { /* Keys' cubic with a = -1/2 */
        const double a = -0.5;
        if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
        return (((x - 5) * x + 8) * x - 4) * a;
    }
    default: return sinc(x) * sinc(x / 3);
    }
}

/* Fractional bits with which no weight outgrows 16 bits, with some room for what rounding leaves over, and no sum
 * outgrows 32. */
static int bits_for(double largest) {
    int bits = 20;
    while (bits > 0 && largest * (double)(1 << bits) > 32000.0) bits--;
    return bits;
}

/* Rounds weights that add up to one so that they still do: the largest takes what is left over. */
static void round_weights(const double *exact, int count, int bits, int16_t *weight) {
    int largest = 0, sum = 0;
    for (int k = 0; k < count; k++) {
        weight[k] = (int16_t)lrint(exact[k] * (double)(1 << bits));
        sum += weight[k];
        if (exact[k] > exact[largest]) largest = k;
    }
    weight[largest] = (int16_t)(weight[largest] + (1 << bits) - sum);
}

int taps_fill(Taps *taps, int method, int out, double box_at, double box_size, int low, int high) {
    double step = box_size / out, stretch = step < 1.0 ? 1.0 : step;
    double reach = half_widths[method] * stretch, largest = 0.0;
    if (!(reach < (1 << 28))) return -1;
    size_t most = (size_t)ceil(reach) * 2 + 1, n = (size_t)out;
    if (most > (size_t)(high - low)) most = (size_t)(high - low);
    double *exact = buffer_need(&taps->exact, n * most * sizeof(double));
    int32_t *memory = buffer_need(&taps->memory, 2 * n * sizeof(int32_t) + n * (most + 3) * sizeof(int16_t));
    if (exact == NULL || memory == NULL) return -1;
    taps->first = memory;
    taps->count = memory + n;
    taps->weight = (int16_t *)(memory + 2 * n);
    taps->most = 1;
    taps->low = high;
    taps->high = low;
    for (int i = 0; i < out; i++) {
        /* counted from the clamp's edge, as if the clamp were all of the image */
        double centre = box_at - low + (i + 0.5) * step, sum = 0.0, *weight = exact + (size_t)i * most;
        double begin = centre - reach + 0.5, end = centre + reach + 0.5;
        /* a box may lie beside its clamp: then the nearest pixel is all there is */
        int from = begin < 0 ? 0 : begin > high - low - 1 ? high - low - 1 : (int)begin;
        int until = end > high - low ? high - low : end < from + 1 ? from + 1 : (int)end;
        int count = until - from;
        for (int k = 0; k < count; k++)
            sum += weight[k] = weight_at(method, (k + from - centre + 0.5) * (1.0 / stretch));
        for (int k = 0; k < count; k++) {
            weight[k] = fabs(sum) > 1e-9 ? weight[k] / sum : k == 0;
            if (fabs(weight[k]) > largest) largest = fabs(weight[k]);
        }
        taps->first[i] = low + from;
        taps->count[i] = count;
        if (count > taps->most) taps->most = count;
        if (low + from < taps->low) taps->low = low + from;
        if (low + until > taps->high) taps->high = low + until;
    }
    taps->bits = bits_for(largest);
    size_t stride = ((size_t)taps->most + 3) & ~(size_t)3; /* kernels take four at a time; the rest are 0 */
    taps->stride = (int)stride;
    memset(taps->weight, 0, n * stride * sizeof(int16_t));
    for (size_t i = 0; i < n; i++)
        round_weights(exact + i * most, taps->count[i], taps->bits, taps->weight + i * stride);
    return 0;
}

#define SWAP(type, a, b)                                                                                     \
    do {                                                                                                     \
        type other = a;                                                                                      \
        a = b;                                                                                               \
        b = other;                                                                                           \
    } while (0)

void taps_flip(Taps *taps, int out) {
    for (int i = 0, j = out - 1; i < j; i++, j--) {
        int16_t *one = taps->weight + (size_t)i * (size_t)taps->stride;
        int16_t *two = taps->weight + (size_t)j * (size_t)taps->stride;
        SWAP(int32_t, taps->first[i], taps->first[j]);
        SWAP(int32_t, taps->count[i], taps->count[j]);
        for (int k = 0; k < taps->stride; k++) SWAP(int16_t, one[k], two[k]);
    }
}

void taps_mirror(Taps *taps, int out, int size) {
    for (int i = 0; i < out; i++) {
        int16_t *weight = taps->weight + (size_t)i * (size_t)taps->stride;
        taps->first[i] = size - taps->first[i] - taps->count[i];
        for (int k = 0, l = taps->count[i] - 1; k < l; k++, l--) SWAP(int16_t, weight[k], weight[l]);
    }
    int low = size - taps->high;
    taps->high = size - taps->low;
    taps->low = low;
}

void taps_free(Taps *taps) {
    free(taps->memory.data);
    free(taps->exact.data);
    free(taps->rows.data);
}

static inline uint8_t to_byte(int32_t sum, int bits) {
    sum >>= bits;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Output pixels from `from` to `until`. */
static void across_plain(const uint8_t *row, const Taps *taps, int x_offset, int source_channels, int channels,
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

/* Row y lies at place y modulo `ring`; rows are padded to whole blocks. */
enum { DOWN_BLOCK = 32 };

static void down_plain(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                       int bits, uint8_t *out, int n) {
    for (int at = 0; at < n; at += DOWN_BLOCK) {
        int32_t sum[DOWN_BLOCK];
        uint8_t bytes[DOWN_BLOCK];
        for (int i = 0; i < DOWN_BLOCK; i++) sum[i] = 1 << bits >> 1;
        for (int k = 0, place = first % ring; k < count; k++) {
            const uint8_t *row = rows + (size_t)place * stride + at;
            int16_t w = weight[k];
            for (int i = 0; i < DOWN_BLOCK; i++) sum[i] += (int16_t)row[i] * w;
            place = place + 1 == ring ? 0 : place + 1;
        }
        for (int i = 0; i < DOWN_BLOCK; i++) bytes[i] = to_byte(sum[i], bits);
        memcpy(out + at, bytes, (size_t)(n - at < DOWN_BLOCK ? n - at : DOWN_BLOCK));
    }
}

/* Pixels of three channels, whole ones in a vector, four taps at a time. Of the source as many taps are read as any
 * pixel has, those of weight 0 included, and some bytes more; so not all pixels of a row are for these. Of the output a
 * byte or two too many are written, which belong to the next pixel or to the row's padding. */
enum { SLACK = 4 };

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

static void across_three(const uint8_t *row, const Taps *taps, int x_offset, int from, int until, uint8_t *out) {
    int fours = taps->stride / 4;
    if (fours == 1) across_fours(row, taps, x_offset, from, until, 1, out);
    else if (fours == 2) across_fours(row, taps, x_offset, from, until, 2, out);
    else across_fours(row, taps, x_offset, from, until, fours, out);
}
#define ACROSS_THREE across_three
#define DOWN down_plain

#elif defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("sse4.1"))) static void across_three(const uint8_t *row, const Taps *taps, int x_offset,
                                                           int from, int until, uint8_t *out) {
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

__attribute__((target("avx2"))) static void across_three_avx(const uint8_t *row, const Taps *taps, int x_offset,
                                                             int from, int until, uint8_t *out) {
    int fours = taps->stride / 4;
    int done = fours == 1   ? across_fours(row, taps, x_offset, from, until, 1, out)
               : fours == 2 ? across_fours(row, taps, x_offset, from, until, 2, out)
                            : across_fours(row, taps, x_offset, from, until, fours, out);
    if (done < until) across_three(row, taps, x_offset, done, until, out);
}

/* Two rows at a time, as pairs of 16-bit values. */
__attribute__((target("avx2"))) static void down_avx(const uint8_t *rows, size_t stride, int ring, int first,
                                                     int count, const int16_t *weight, int bits, uint8_t *out, int n) {
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
#define ACROSS_THREE                                                                                         \
    (__builtin_cpu_supports("avx2")     ? across_three_avx                                                   \
     : __builtin_cpu_supports("sse4.1") ? across_three                                                       \
                                        : NULL)
#define DOWN (__builtin_cpu_supports("avx2") ? down_avx : down_plain)

#else
#define ACROSS_THREE NULL
#define DOWN down_plain
#endif

typedef void (*AcrossThree)(const uint8_t *row, const Taps *taps, int x_offset, int from, int until,
                            uint8_t *out);
typedef void (*Down)(const uint8_t *rows, size_t stride, int ring, int first, int count, const int16_t *weight,
                     int bits, uint8_t *out, int n);

/* Whether pixel i may be left to AcrossThree, in rows of so many bytes. */
static int is_inside(const Taps *taps, int i, int x_offset, size_t row_bytes) {
    return (size_t)(taps->first[i] - x_offset + taps->stride) * 3 + SLACK <= row_bytes;
}

int filter_ready(Resampler *r) {
    r->down.row_bytes = ((size_t)r->cols.lanes + 2 * DOWN_BLOCK) & ~(size_t)(DOWN_BLOCK - 1);
    return buffer_need(&r->down.rows, (size_t)r->down.most * r->down.row_bytes) == NULL ? -1 : 0;
}

void filter_rows(Resampler *r, RowReader reader, void *context, int x_offset, size_t row_bytes,
                 int source_channels, int descending, FinishRow finish, uint8_t *out) {
    uint8_t *rows = r->down.rows.data;
    size_t stride = r->down.row_bytes;
    int ring = r->down.most, h = r->spec.out_h, w = r->spec.out_w, channels = r->spec.channels;
    int next = r->down.low, from = 0, until = 0; /* pixels from..until are left to AcrossThree */
    AcrossThree three = source_channels == 3 ? ACROSS_THREE : NULL;
    Down down = DOWN;
    if (three) {
        /* those at the end of the source are the last ones or, flipped, the first */
        while (from < w && !is_inside(&r->across, from, x_offset, row_bytes)) from++;
        until = from;
        while (until < w && is_inside(&r->across, until, x_offset, row_bytes)) until++;
    }
    for (int i = 0; i < h; i++) {
        int y = descending ? h - 1 - i : i;
        int first = r->down.first[y], count = r->down.count[y];
        if (next < first) next = first;
        for (; next < first + count; next++) {
            const uint8_t *row = reader(context, next);
            uint8_t *filtered = rows + (size_t)(next % ring) * stride;
            if (from < until) three(row, &r->across, x_offset, from, until, filtered);
            across_plain(row, &r->across, x_offset, source_channels, channels, 0, from, filtered);
            across_plain(row, &r->across, x_offset, source_channels, channels, until, w, filtered);
        }
        const int16_t *weight = r->down.weight + (size_t)y * (size_t)r->down.stride;
        down(rows, stride, ring, first, count, weight, r->down.bits, r->line, r->cols.lanes);
        finish(r, r->line, y, out);
    }
}
