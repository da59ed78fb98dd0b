/* The inner loops, in plain C and for NEON, SSE4.1 and AVX2. All give the same bits. */
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
    for (int i = from; i < n; i++)
        out[i] = (uint8_t)((blend(upper[i], lower[i], weight) + 64) >> 7);
}

static void down_plain(const int16_t *upper, const int16_t *lower, int16_t weight, uint8_t *out, int n) {
    down_tail(upper, lower, weight, out, 0, n);
}

/* These loops are left to the compiler's vectoriser, and compiled once per instruction set. */
#define LOOPS(SUFFIX, TARGET)                                                                             \
    TARGET static void split3_##SUFFIX(const uint8_t *restrict row, uint8_t *restrict a,                  \
                                       uint8_t *restrict b, uint8_t *restrict c, int n) {                 \
        for (int i = 0; i < n; i++) {                                                                     \
            a[i] = row[3 * i];                                                                            \
            b[i] = row[3 * i + 1];                                                                        \
            c[i] = row[3 * i + 2];                                                                        \
        }                                                                                                 \
    }                                                                                                     \
    TARGET static void to_float32_##SUFFIX(const uint8_t *restrict row, const float *restrict scale,      \
                                           const float *restrict bias, float *restrict out, int n) {      \
        for (int i = 0; i < n; i++) out[i] = (float)row[i] * scale[i] + bias[i];                          \
    }                                                                                                     \
    TARGET static void to_bfloat16_##SUFFIX(const uint8_t *restrict row, const float *restrict scale,     \
                                            const float *restrict bias, uint16_t *restrict out, int n) {  \
        for (int i = 0; i < n; i++) {                                                                     \
            float value = (float)row[i] * scale[i] + bias[i];                                             \
            uint32_t bits;                                                                                \
            memcpy(&bits, &value, 4);                                                                     \
            out[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);                              \
        }                                                                                                 \
    }

LOOPS(plain, )

const Lanes lanes_plain = {"plain", across_plain, down_plain, split3_plain, to_float32_plain,
                           to_bfloat16_plain};

/* ---- NEON ---- */

#if defined(__aarch64__)
#include <arm_neon.h>

static void across_neon(const uint8_t *row, const Columns *columns, int16_t *lanes) {
    if (!columns->windowed) {
        across_plain(row, columns, lanes);
        return;
    }
    const uint8_t *taps = columns->taps;
    const int16_t *weight = columns->weight;
    for (int g = 0; g < columns->groups; g++) {
        const uint8_t *at = row + columns->base[g];
        uint8x16x2_t window = {{vld1q_u8(at), vld1q_u8(at + 16)}};
        uint8x16_t pixels = vqtbl2q_u8(window, vld1q_u8(taps + 16 * g));
        uint8x8_t left = vget_low_u8(pixels);
        int16x8_t step = vreinterpretq_s16_u16(vsubl_u8(vget_high_u8(pixels), left));
        int16x8_t from = vreinterpretq_s16_u16(vshll_n_u8(left, 7));
        int16x8_t part = vqrdmulhq_s16(vshlq_n_s16(step, 7), vld1q_s16(weight + GROUP * g));
        vst1q_s16(lanes + GROUP * g, vaddq_s16(from, part));
    }
}

static void down_neon(const int16_t *upper, const int16_t *lower, int16_t weight, uint8_t *out, int n) {
    int16x8_t w = vdupq_n_s16(weight);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        int16x8_t a0 = vld1q_s16(upper + i), a1 = vld1q_s16(upper + i + 8);
        int16x8_t b0 = vld1q_s16(lower + i), b1 = vld1q_s16(lower + i + 8);
        a0 = vaddq_s16(a0, vqrdmulhq_s16(vsubq_s16(b0, a0), w));
        a1 = vaddq_s16(a1, vqrdmulhq_s16(vsubq_s16(b1, a1), w));
        vst1q_u8(out + i, vcombine_u8(vqrshrun_n_s16(a0, 7), vqrshrun_n_s16(a1, 7)));
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

static const Lanes lanes_neon = {"neon", across_neon, down_neon, split3_neon, to_float32_plain,
                                 to_bfloat16_plain};

int lanes_all(const Lanes **found, int room) {
    int n = 0;
    if (n < room) found[n++] = &lanes_plain;
    if (n < room) found[n++] = &lanes_neon;
    return n;
}

/* ---- SSE4.1 and AVX2 ---- */

#elif defined(__x86_64__)
#include <immintrin.h>

#define SSE __attribute__((target("sse4.1")))
#define AVX __attribute__((target("avx2")))

SSE static void across_sse(const uint8_t *row, const Columns *columns, int16_t *lanes) {
    if (!columns->windowed) {
        across_plain(row, columns, lanes);
        return;
    }
    const __m128i zero = _mm_setzero_si128();
    for (int g = 0; g < columns->groups; g++) {
        const uint8_t *at = row + columns->base[g];
        __m128i taps = _mm_loadu_si128((const __m128i *)(columns->taps + 16 * g));
        /* pshufb sees 16 bytes; a set top bit gives 0, so each half answers only for its own taps */
        __m128i near = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)at),
                                        _mm_adds_epu8(taps, _mm_set1_epi8(0x70)));
        __m128i far = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(at + 16)),
                                       _mm_sub_epi8(taps, _mm_set1_epi8(16)));
        __m128i pixels = _mm_or_si128(near, far);
        __m128i left = _mm_slli_epi16(_mm_unpacklo_epi8(pixels, zero), 7);
        __m128i right = _mm_slli_epi16(_mm_unpackhi_epi8(pixels, zero), 7);
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

static const Lanes lanes_sse = {"sse4.1", across_sse, down_sse, split3_sse, to_float32_sse, to_bfloat16_sse};
static const Lanes lanes_avx = {"avx2", across_sse, down_avx, split3_avx, to_float32_avx, to_bfloat16_avx};

int lanes_all(const Lanes **found, int room) {
    int n = 0;
    if (n < room) found[n++] = &lanes_plain;
    if (n < room && __builtin_cpu_supports("sse4.1")) found[n++] = &lanes_sse;
    if (n < room && __builtin_cpu_supports("avx2")) found[n++] = &lanes_avx;
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
