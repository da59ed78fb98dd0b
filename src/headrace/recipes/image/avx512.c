/* Inner loops for AVX-512 that can pick any bytes of a register (VBMI), and multiply and add in one step (VNNI). */
#include <string.h>

#include "resample.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))
#define WIDE_INLINE WIDE __attribute__((always_inline)) static inline

int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vnni");
}

/* Sixteen pixels: those of a channel are picked, and become a cache line of floats. */
WIDE_INLINE void stream_channel(__m512i pixels, __m512i of, __m512 scale, __m512 bias, float *out) {
    __m128i bytes = _mm512_castsi512_si128(_mm512_permutexvar_epi8(of, pixels));
    __m512 value = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), scale), bias);
    if (((uintptr_t)out & 63) == 0) _mm512_stream_ps(out, value);
    else _mm512_storeu_ps(out, value);
}

WIDE void stream_planes_avx512(const uint8_t *row, const float *scale, const float *bias, float *out, size_t plane,
                               int n) {
    const __m512i first =
        _mm512_castsi128_si512(_mm_setr_epi8(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45));
    const __m512i one = _mm512_set1_epi8(1);
    const __m512i second = _mm512_add_epi8(first, one), third = _mm512_add_epi8(second, one);
    const __m512 scales[] = {_mm512_set1_ps(scale[0]), _mm512_set1_ps(scale[1]), _mm512_set1_ps(scale[2])};
    const __m512 biases[] = {_mm512_set1_ps(bias[0]), _mm512_set1_ps(bias[1]), _mm512_set1_ps(bias[2])};
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i pixels = _mm512_maskz_loadu_epi8(0xffffffffffff, row + 3 * i);
        stream_channel(pixels, first, scales[0], biases[0], out + i);
        stream_channel(pixels, second, scales[1], biases[1], out + plane + i);
        stream_channel(pixels, third, scales[2], biases[2], out + 2 * plane + i);
    }
    for (; i < n; i++)
        for (int c = 0; c < 3; c++) out[(size_t)c * plane + (size_t)i] = (float)row[3 * i + c] * scale[c] + bias[c];
}

/* Groups of sixteen lanes, and pairs of their taps: places in the even bytes, and 16-bit weights. */
enum { GROUP_LANES = 16, WINDOW_BYTES = 64 };

int filter_plan_avx512(Windows *windows, const Taps *taps, int w, int x_offset, size_t row_bytes) {
    int lanes = 3 * w, groups = (lanes + GROUP_LANES - 1) / GROUP_LANES, pairs = (taps->most + 1) / 2;
    if (taps->most * 3 > WINDOW_BYTES) return 0;
    size_t tables = (size_t)groups * (size_t)pairs * WINDOW_BYTES;
    uint8_t *memory = buffer_need(&windows->memory, 2 * tables + (size_t)groups * sizeof(int32_t));
    if (memory == NULL) return 0; /* the other kernels need none */
    windows->groups = groups;
    windows->steps = pairs;
    windows->index = memory;
    windows->weight = memory + tables;
    windows->base = (int32_t *)(memory + 2 * tables);
    memset(memory, 0, 2 * tables);
    for (int g = 0; g < groups; g++) {
        int first = g * GROUP_LANES, until = first + GROUP_LANES < lanes ? first + GROUP_LANES : lanes;
        int32_t base = window_base(taps, first, until - 1, 0, taps->most, x_offset, row_bytes, WINDOW_BYTES);
        if (base < 0) return 0;
        windows->base[g] = base;
        for (int lane = first; lane < until; lane++) {
            int i = lane / 3, from = 3 * (taps->first[i] - x_offset) + lane % 3 - base;
            const int16_t *weight = taps->weight + (size_t)i * (size_t)taps->stride;
            size_t at = (size_t)g * (size_t)pairs * WINDOW_BYTES + (size_t)(lane - first) * 4;
            for (int k = 0; k < taps->count[i]; k++) {
                size_t place = at + (size_t)(k / 2) * WINDOW_BYTES + (size_t)(k % 2) * 2;
                windows->index[place] = (uint8_t)(from + 3 * k);
                memcpy(windows->weight + place, weight + k, sizeof *weight);
            }
        }
    }
    return 1;
}

/* Every lane's two taps are picked from the window as 16-bit values, multiplied and added, pair by pair. */
WIDE_INLINE void windows_of(const uint8_t *row, const Windows *windows, int pairs, int bits, uint8_t *out) {
    const __mmask64 even = 0x5555555555555555;
    const __m512i half = _mm512_set1_epi32(1 << bits >> 1), zero = _mm512_setzero_si512();
    const __m128i shift = _mm_cvtsi32_si128(bits);
    const uint8_t *index = windows->index, *weight = windows->weight;
    for (int g = 0; g < windows->groups; g++) {
        __m512i window = _mm512_loadu_si512(row + windows->base[g]), sum = half;
        for (int k = 0; k < pairs; k++, index += WINDOW_BYTES, weight += WINDOW_BYTES) {
            __m512i taps = _mm512_maskz_permutexvar_epi8(even, _mm512_load_si512(index), window);
            sum = _mm512_dpwssd_epi32(sum, taps, _mm512_load_si512(weight));
        }
        sum = _mm512_max_epi32(_mm512_sra_epi32(sum, shift), zero);
        _mm_storeu_si128((__m128i *)(out + GROUP_LANES * g), _mm512_cvtusepi32_epi8(sum));
    }
}

WIDE void filter_windows_avx512(const uint8_t *row, const Windows *windows, int bits, uint8_t *out) {
    switch (windows->steps) {
    case 1: windows_of(row, windows, 1, bits, out); break;
    case 2: windows_of(row, windows, 2, bits, out); break;
    case 3: windows_of(row, windows, 3, bits, out); break;
    case 4: windows_of(row, windows, 4, bits, out); break;
    default: windows_of(row, windows, windows->steps, bits, out);
    }
}

/* Two rows at a time, as pairs of 16-bit values. */
WIDE void filter_down_avx512(const uint8_t *rows, size_t stride, int ring, int first, int count,
                             const int16_t *weight, int bits, uint8_t *out, int n) {
    const __m512i half = _mm512_set1_epi32(1 << bits >> 1), zero = _mm512_setzero_si512();
    const __m128i shift = _mm_cvtsi32_si128(bits);
    const int begin = first % ring;
    for (int at = 0; at < n; at += FILTER_BLOCK) {
        __m512i low = half, high = half;
        for (int k = 0, place = begin; k < count; k += 2) {
            const uint8_t *upper = rows + (size_t)place * stride + at;
            place = place + 1 == ring ? 0 : place + 1;
            /* (after the last of an odd number comes one of weight 0) */
            const uint8_t *lower = k + 1 < count ? rows + (size_t)place * stride + at : upper;
            place = place + 1 == ring ? 0 : place + 1;
            int32_t pair;
            memcpy(&pair, weight + k, 4);
            __m512i w = _mm512_set1_epi32(pair);
            __m512i a = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)upper));
            __m512i b = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)lower));
            low = _mm512_dpwssd_epi32(low, _mm512_unpacklo_epi16(a, b), w);
            high = _mm512_dpwssd_epi32(high, _mm512_unpackhi_epi16(a, b), w);
        }
        /* unpacking and packing work alike within quarters, so the order is as it was */
        __m512i sums = _mm512_packs_epi32(_mm512_sra_epi32(low, shift), _mm512_sra_epi32(high, shift));
        __m256i bytes = _mm512_cvtusepi16_epi8(_mm512_max_epi16(sums, zero));
        __mmask32 kept = n - at >= FILTER_BLOCK ? 0xffffffff : (1u << (n - at)) - 1;
        _mm256_mask_storeu_epi8(out + at, kept, bytes);
    }
}
#endif
