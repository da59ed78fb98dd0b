/* The inner loops, in plain C and for NEON, SSE4.1 and AVX2 (and see dot.c, avx512.c). All give the same bits. */
#include <string.h>

#include "resample.h"

static inline int16_t blend(int upper, int lower, int weight) {
    return (int16_t)(upper + (((lower - upper) * weight + (1 << 14)) >> 15));
}

/* ---- plain C ---- */

static void across_plain(const uint8_t *row, const Columns *columns, int16_t *lanes) {
    for (int i = 0; i < columns->lanes; i++)
        lanes[i] = blend(row[columns->first[i]] << 7, row[columns->second[i]] << 7, columns->weight[i]);
}

static inline void down_tail(const int16_t *upper, const int16_t *lower, int16_t weight, uint8_t *out,
                             int from, int n) {
    for (int i = from; i < n; i++) out[i] = (uint8_t)((blend(upper[i], lower[i], weight) + 64) >> 7);
}

static void down_plain(const int16_t *upper, const int16_t *lower, int16_t weight, uint8_t *out, int n) {
    down_tail(upper, lower, weight, out, 0, n);
}

static void split3_plain(const uint8_t *restrict row, uint8_t *restrict a, uint8_t *restrict b, uint8_t *restrict c,
                         int n) {
    for (int i = 0; i < n; i++) {
        a[i] = row[3 * i];
        b[i] = row[3 * i + 1];
        c[i] = row[3 * i + 2];
    }
}

/* These loops are left to the compiler's vectoriser, and compiled once per instruction set. */
#define LOOPS(SUFFIX, TARGET)                                                                                \
    TARGET static void to_float32_##SUFFIX(const uint8_t *restrict row, const float *restrict scale,         \
                                           const float *restrict bias, float *restrict out, int n) {         \
        for (int i = 0; i < n; i++) out[i] = (float)row[i] * scale[i] + bias[i];                             \
    }                                                                                                        \
    TARGET static void to_bfloat16_##SUFFIX(const uint8_t *restrict row, const float *restrict scale,        \
                                            const float *restrict bias, uint16_t *restrict out, int n) {     \
        for (int i = 0; i < n; i++) {                                                                        \
            float value = (float)row[i] * scale[i] + bias[i];                                                \
            uint32_t bits;                                                                                   \
            memcpy(&bits, &value, 4);                                                                        \
            out[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);                                 \
        }                                                                                                    \
    }

LOOPS(plain, )

const Lanes lanes_plain = {.name = "plain",
                           .across = across_plain,
                           .down = down_plain,
                           .split3 = split3_plain,
                           .to_float32 = to_float32_plain,
                           .to_bfloat16 = to_bfloat16_plain,
                           .filter_down = filter_down_plain};

/* ---- NEON ---- */

#if defined(__aarch64__)
#include <arm_neon.h>

/* Both taps of a group land in the upper bytes of their lanes (a tap of 255 gives 0), so the halving
 * subtraction leaves their difference with 7 fractional bits. */
static inline int16x8_t group_neon(const uint8_t *at, const uint8_t *taps, const int16_t *weight) {
    uint8x16x2_t window = vld1q_u8_x2(at);
    uint16x8_t left = vreinterpretq_u16_u8(vqtbl2q_u8(window, vld1q_u8(taps)));
    uint16x8_t right = vreinterpretq_u16_u8(vqtbl2q_u8(window, vld1q_u8(taps + 16)));
    int16x8_t step = vreinterpretq_s16_u16(vhsubq_u16(right, left));
    uint16x8_t part = vreinterpretq_u16_s16(vqrdmulhq_s16(step, vld1q_s16(weight)));
    return vreinterpretq_s16_u16(vsraq_n_u16(part, left, 1));
}

static void across_neon(const uint8_t *restrict row, const Columns *columns, int16_t *restrict lanes) {
    if (!columns->windowed) {
        across_plain(row, columns, lanes);
        return;
    }
    const uint8_t *taps = columns->taps;
    const int16_t *weight = columns->weight;
    const int32_t *base = columns->base, *end = base + columns->groups;
    for (; base < end; base += 4, taps += 4 * TAPS, weight += 4 * GROUP, lanes += 4 * GROUP) {
        int16x8_t a = group_neon(row + base[0], taps, weight);
        int16x8_t b = group_neon(row + base[1], taps + TAPS, weight + GROUP);
        int16x8_t c = group_neon(row + base[2], taps + 2 * TAPS, weight + 2 * GROUP);
        int16x8_t d = group_neon(row + base[3], taps + 3 * TAPS, weight + 3 * GROUP);
        vst1q_s16(lanes, a);
        vst1q_s16(lanes + GROUP, b);
        vst1q_s16(lanes + 2 * GROUP, c);
        vst1q_s16(lanes + 3 * GROUP, d);
    }
}

static inline int16x8_t blend_neon(const int16_t *upper, const int16_t *lower, int16x8_t weight) {
    int16x8_t a = vld1q_s16(upper);
    return vaddq_s16(a, vqrdmulhq_s16(vsubq_s16(vld1q_s16(lower), a), weight));
}

static void down_neon(const int16_t *restrict upper, const int16_t *restrict lower, int16_t weight,
                      uint8_t *restrict out, int n) {
    int16x8_t w = vdupq_n_s16(weight);
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        int16x8_t a = blend_neon(upper + i, lower + i, w), b = blend_neon(upper + i + 8, lower + i + 8, w);
        int16x8_t c = blend_neon(upper + i + 16, lower + i + 16, w);
        int16x8_t d = blend_neon(upper + i + 24, lower + i + 24, w);
        vst1q_u8(out + i, vqrshrun_high_n_s16(vqrshrun_n_s16(a, 7), b, 7));
        vst1q_u8(out + i + 16, vqrshrun_high_n_s16(vqrshrun_n_s16(c, 7), d, 7));
    }
    down_tail(upper, lower, weight, out, i, n);
}

static void split3_neon(const uint8_t *row, uint8_t *a, uint8_t *b, uint8_t *c, int n) {
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        uint8x16x3_t pixels = vld3q_u8(row + 3 * i);
        vst1q_u8(a + i, pixels.val[0]);
        vst1q_u8(b + i, pixels.val[1]);
        vst1q_u8(c + i, pixels.val[2]);
    }
    split3_plain(row + 3 * i, a + i, b + i, c + i, n - i);
}

static inline float16x4_t half_neon(uint16x4_t pixels, const float *scale, const float *bias) {
    float32x4_t value = vmulq_f32(vcvtq_f32_u32(vmovl_u16(pixels)), vld1q_f32(scale));
    return vcvt_f16_f32(vaddq_f32(value, vld1q_f32(bias)));
}

static void to_float16_neon(const uint8_t *row, const float *scale, const float *bias, uint16_t *out, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x8_t pixels = vmovl_u8(vld1_u8(row + i));
        vst1_u16(out + i, vreinterpret_u16_f16(half_neon(vget_low_u16(pixels), scale + i, bias + i)));
        vst1_u16(out + i + 4,
                 vreinterpret_u16_f16(half_neon(vget_high_u16(pixels), scale + i + 4, bias + i + 4)));
    }
    for (; i < n; i++) out[i] = half_from_float((float)row[i] * scale[i] + bias[i]);
}

static const Lanes lanes_neon = {.name = "neon",
                                 .across = across_neon,
                                 .down = down_neon,
                                 .split3 = split3_neon,
                                 .to_float32 = to_float32_plain,
                                 .to_bfloat16 = to_bfloat16_plain,
                                 .to_float16 = to_float16_neon,
                                 .filter_across = filter_across_neon,
                                 .filter_down = filter_down_plain};

static const Lanes lanes_dot = {.name = "neon with dot products",
                                .across = across_neon,
                                .down = down_neon,
                                .split3 = split3_neon,
                                .to_float32 = to_float32_plain,
                                .to_bfloat16 = to_bfloat16_plain,
                                .to_float16 = to_float16_neon,
                                .filter_across = filter_across_neon,
                                .filter_plan = filter_plan_dot,
                                .filter_windows = filter_windows_dot,
                                .filter_down = filter_down_dot};

int lanes_all(const Lanes **found, int room) {
    int n = 0;
    if (n < room) found[n++] = &lanes_plain;
    if (n < room) found[n++] = &lanes_neon;
    if (n < room && has_dot()) found[n++] = &lanes_dot;
    return n;
}

/* ---- SSE4.1 and AVX2 ---- */

#elif defined(__x86_64__)
#include <immintrin.h>

#define SSE __attribute__((target("sse4.1")))
#define AVX __attribute__((target("avx2")))

/* pshufb sees 16 bytes; a set top bit gives 0, so each half of the window answers only for its own taps. */
SSE static inline __m128i gather_sse(__m128i near, __m128i far, const uint8_t *taps) {
    __m128i at = _mm_loadu_si128((const __m128i *)taps);
    return _mm_or_si128(_mm_shuffle_epi8(near, _mm_adds_epu8(at, _mm_set1_epi8(0x70))),
                        _mm_shuffle_epi8(far, _mm_sub_epi8(at, _mm_set1_epi8(16))));
}

SSE static void across_sse(const uint8_t *restrict row, const Columns *columns, int16_t *restrict lanes) {
    if (!columns->windowed) {
        across_plain(row, columns, lanes);
        return;
    }
    for (int g = 0; g < columns->groups; g++) {
        const uint8_t *at = row + columns->base[g], *taps = columns->taps + TAPS * g;
        __m128i near = _mm_loadu_si128((const __m128i *)at);
        __m128i far = _mm_loadu_si128((const __m128i *)(at + 16));
        __m128i left = _mm_srli_epi16(gather_sse(near, far, taps), 1);
        __m128i right = _mm_srli_epi16(gather_sse(near, far, taps + 16), 1);
        __m128i weight = _mm_loadu_si128((const __m128i *)(columns->weight + GROUP * g));
        __m128i part = _mm_mulhrs_epi16(_mm_sub_epi16(right, left), weight);
        _mm_storeu_si128((__m128i *)(lanes + GROUP * g), _mm_add_epi16(left, part));
    }
}

SSE static inline __m128i blend_sse(const int16_t *upper, const int16_t *lower, __m128i weight) {
    __m128i a = _mm_loadu_si128((const __m128i *)upper), b = _mm_loadu_si128((const __m128i *)lower);
    a = _mm_add_epi16(a, _mm_mulhrs_epi16(_mm_sub_epi16(b, a), weight));
    return _mm_srli_epi16(_mm_add_epi16(a, _mm_set1_epi16(64)), 7);
}

SSE static void down_sse(const int16_t *upper, const int16_t *lower, int16_t weight, uint8_t *out, int n) {
    __m128i w = _mm_set1_epi16(weight);
    int i = 0;
    for (; i + 16 <= n; i += 16)
        _mm_storeu_si128((__m128i *)(out + i), _mm_packus_epi16(blend_sse(upper + i, lower + i, w),
                                                                blend_sse(upper + i + 8, lower + i + 8, w)));
    down_tail(upper, lower, weight, out, i, n);
}

AVX static inline __m256i blend_avx(const int16_t *upper, const int16_t *lower, __m256i weight) {
    __m256i a = _mm256_loadu_si256((const __m256i *)upper), b = _mm256_loadu_si256((const __m256i *)lower);
    a = _mm256_add_epi16(a, _mm256_mulhrs_epi16(_mm256_sub_epi16(b, a), weight));
    return _mm256_srli_epi16(_mm256_add_epi16(a, _mm256_set1_epi16(64)), 7);
}

AVX static void down_avx(const int16_t *upper, const int16_t *lower, int16_t weight, uint8_t *out, int n) {
    __m256i w = _mm256_set1_epi16(weight);
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i packed = _mm256_packus_epi16(blend_avx(upper + i, lower + i, w),
                                             blend_avx(upper + i + 16, lower + i + 16, w));
        /* packus works within 128-bit halves; put the quarters back in order */
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    down_tail(upper, lower, weight, out, i, n);
}

LOOPS(sse, SSE)
LOOPS(avx, AVX)

SSE static void split3_sse(const uint8_t *row, uint8_t *a, uint8_t *b, uint8_t *c, int n) {
#define FROM(first, second, third)                                                                           \
    _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(one, first), _mm_shuffle_epi8(two, second)),                  \
                 _mm_shuffle_epi8(three, third))
    const __m128i a0 = _mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i a1 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1);
    const __m128i a2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13);
    const __m128i b0 = _mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i b1 = _mm_setr_epi8(-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1);
    const __m128i b2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14);
    const __m128i c0 = _mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i c1 = _mm_setr_epi8(-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1);
    const __m128i c2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i *p = (const __m128i *)(row + 3 * i);
        __m128i one = _mm_loadu_si128(p), two = _mm_loadu_si128(p + 1), three = _mm_loadu_si128(p + 2);
        _mm_storeu_si128((__m128i *)(a + i), FROM(a0, a1, a2));
        _mm_storeu_si128((__m128i *)(b + i), FROM(b0, b1, b2));
        _mm_storeu_si128((__m128i *)(c + i), FROM(c0, c1, c2));
    }
#undef FROM
    split3_plain(row + 3 * i, a + i, b + i, c + i, n - i);
}

/* Past the caches: memory that nobody reads for a while need not be fetched before it is written. */
AVX static void stream_float32_avx(const uint8_t *restrict row, const float *restrict scale,
                                   const float *restrict bias, float *restrict out, int n) {
    int i = 0;
    for (; i < n && ((uintptr_t)(out + i) & 31) != 0; i++) out[i] = (float)row[i] * scale[i] + bias[i];
    for (; i + 8 <= n; i += 8) {
        __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(row + i))));
        value = _mm256_mul_ps(value, _mm256_loadu_ps(scale + i));
        _mm256_stream_ps(out + i, _mm256_add_ps(value, _mm256_loadu_ps(bias + i)));
    }
    for (; i < n; i++) out[i] = (float)row[i] * scale[i] + bias[i];
}

static const Lanes lanes_sse = {.name = "sse4.1",
                                .across = across_sse,
                                .down = down_sse,
                                .split3 = split3_sse,
                                .to_float32 = to_float32_sse,
                                .to_bfloat16 = to_bfloat16_sse,
                                .filter_across = filter_across_sse,
                                .filter_down = filter_down_plain};
static const Lanes lanes_avx = {.name = "avx2",
                                .across = across_sse,
                                .down = down_avx,
                                .split3 = split3_sse,
                                .to_float32 = to_float32_avx,
                                .to_bfloat16 = to_bfloat16_avx,
                                .stream_float32 = stream_float32_avx,
                                .filter_across = filter_across_avx,
                                .filter_down = filter_down_avx};
static const Lanes lanes_avx512 = {.name = "avx512",
                                   .across = across_sse,
                                   .down = down_avx,
                                   .split3 = split3_sse,
                                   .to_float32 = to_float32_avx,
                                   .to_bfloat16 = to_bfloat16_avx,
                                   .stream_float32 = stream_float32_avx,
                                   .stream_planes = stream_planes_avx512,
                                   .filter_across = filter_across_avx,
                                   .filter_plan = filter_plan_avx512,
                                   .filter_windows = filter_windows_avx512,
                                   .filter_down = filter_down_avx512};

int lanes_all(const Lanes **found, int room) {
    int n = 0;
    if (n < room) found[n++] = &lanes_plain;
    if (n < room && __builtin_cpu_supports("sse4.1")) found[n++] = &lanes_sse;
    if (n < room && __builtin_cpu_supports("avx2")) found[n++] = &lanes_avx;
    if (n < room && has_avx512()) found[n++] = &lanes_avx512;
    return n;
}

#else

int lanes_all(const Lanes **found, int room) {
    if (room > 0) found[0] = &lanes_plain;
    return room > 0;
}

#endif

const Lanes *lanes_best(void) {
    const Lanes *found[8];
    return found[lanes_all(found, 8) - 1];
}
