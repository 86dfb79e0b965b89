/* AVX2 + FMA + F16C. Each output has one accumulator of 8 lanes that takes the steps of k in ascending order,
 * so that its value is the same in every tile. */
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2,fma,f16c")))
#define ROWS_MAX 6

/* ---- activations ---------------------------------------------------------------------------------- */

AVX2 static void avx2_pack_floats(const linear_job *job, int64_t m0, int64_t rows) {
    const int64_t k = job->w->k;
    for (int64_t m = 0; m < rows; m++) {
        const int64_t base = (m0 + m) * k;
        float *x = (float *)job->x + m0 * job->stride + m * 16;
        int64_t s = 0;
        for (; s + 16 <= k; s += 16, x += rows * 16) {
            __m256 even, odd;
            if (job->is_bf16) {
                const __m256i raw =
                    _mm256_loadu_si256((const __m256i *)((const uint16_t *)job->source + base + s));
                even = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
                odd = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(raw, 16), 16));
            } else {
                const __m256 a = _mm256_loadu_ps((const float *)job->source + base + s);
                const __m256 b = _mm256_loadu_ps((const float *)job->source + base + s + 8);
                even = _mm256_castpd_ps(
                    _mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
                odd = _mm256_castpd_ps(
                    _mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
            }
            _mm256_store_ps(x, even);
            _mm256_store_ps(x + 8, odd);
        }
        if (s < k)
            for (int64_t i = 0; i < 16; i++)
                x[i % 2 * 8 + i / 2] = s + i < k ? source_value(job, m0 + m, s + i) : 0;
    }
}

AVX2_INLINE int32_t avx2_sum_integers(__m256i v) {
    const __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i b = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

AVX2_INLINE int32_t avx2_greatest(__m256i v) {
    const __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i b = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

AVX2 static void avx2_pack_integers(const linear_job *job, int64_t m0, int64_t rows) {
    const int64_t k = job->w->k, steps = job->stride / 64;
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    if (job->x_sum) memset(job->x_sum + m0 * job->groups, 0, (size_t)(rows * job->groups) * sizeof(float));
    for (int64_t m = 0; m < rows; m++)
        for (int64_t s = 0; s < steps; s++) {
            const int64_t base = (m0 + m) * k + 64 * s;
            __m256 value[8];
            __m256i highest = _mm256_setzero_si256();
            if (64 * s + 64 > k) {
                float last[64];
                for (int64_t i = 0; i < 64; i++)
                    last[i] = 64 * s + i < k ? source_value(job, m0 + m, 64 * s + i) : 0;
                for (int i = 0; i < 8; i++) value[i] = _mm256_loadu_ps(last + 8 * i);
            } else if (job->is_bf16)
                for (int i = 0; i < 8; i++)
                    value[i] = _mm256_castsi256_ps(_mm256_slli_epi32(
                        _mm256_cvtepu16_epi32(_mm_loadu_si128(
                            (const __m128i *)((const uint16_t *)job->source + base + 8 * i))),
                        16));
            else
                for (int i = 0; i < 8; i++)
                    value[i] = _mm256_loadu_ps((const float *)job->source + base + 8 * i);
            for (int i = 0; i < 8; i++) /* magnitudes are ordered like their bits, NaN above infinity */
                highest = _mm256_max_epi32(highest,
                                           _mm256_and_si256(_mm256_castps_si256(value[i]), magnitude));
            float to_integer;
            const float scale = group_scale(avx2_greatest(highest), &to_integer);
            __m256i whole[8];
            if (to_integer == 0)
                for (int i = 0; i < 8; i++) whole[i] = _mm256_setzero_si256();
            else
                for (int i = 0; i < 8; i++)
                    whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(value[i], _mm256_set1_ps(to_integer)));
            __m256i *x = (__m256i *)((int16_t *)job->x + m0 * job->stride + 64 * (s * rows + m));
            for (int i = 0; i < 4; i++)
                _mm256_store_si256(x + i, _mm256_permute4x64_epi64(
                                              _mm256_packs_epi32(whole[2 * i], whole[2 * i + 1]), 0xd8));
            job->x_scale[m0 * steps + s * rows + m] = scale;
            for (int half = 0; job->x_sum && half < 2; half++) {
                const __m256i *v = whole + 4 * half;
                const __m256i sum =
                    _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
                const int64_t g = 2 * s + half;
                job->x_sum[m0 * job->groups + (g / 8 * rows + m) * 8 + g % 8] =
                    (float)avx2_sum_integers(sum) * scale;
            }
        }
}

/* ---- tiles ---------------------------------------------------------------------------------------- */

/* ((l0+l1)+(l2+l3)) + ((l4+l5)+(l6+l7)) of each of four accumulators */
AVX2_INLINE __m128 avx2_sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 v = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

/* sum[r][m] to the outputs of weight rows n.. and activation rows m0.. */
AVX2_INLINE void avx2_finish(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                             __m256 sum[ROWS_MAX][TILE_MAX]) {
    float value[ROWS_MAX * TILE_MAX + 3];
    for (int i = 0; i < M * R; i += 4) {
        const __m256 a = sum[i / M][i % M];
        const __m256 b = i + 1 < M * R ? sum[(i + 1) / M][(i + 1) % M] : a;
        const __m256 c = i + 2 < M * R ? sum[(i + 2) / M][(i + 2) % M] : a;
        const __m256 d = i + 3 < M * R ? sum[(i + 3) / M][(i + 3) % M] : a;
        _mm_storeu_ps(value + i, avx2_sum4(a, b, c, d));
    }
    if (job->w->format == FORMAT_INT8)
        for (int r = 0; r < R; r++)
            for (int m = 0; m < M; m++) value[r * M + m] *= ((const float *)job->w->scale)[n + r];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) store_output(job, m0 + m, n + r, value[r * M + m]);
}

/* Into the first-level cache, where nothing else needs it. The activations of a bf16 tile do: its weights wait in
 * the second level (measured: 28 instead of 20 GB/s for six rows). */
AVX2_INLINE const char *avx2_prefetch(const int R, const char *ahead) {
    for (int r = 0; r < R; r++) _mm_prefetch(ahead + 64 * r, _MM_HINT_T0);
    return ahead + 64 * R;
}

AVX2_INLINE const char *avx2_prefetch_second(const int R, const char *ahead) {
    for (int r = 0; r < R; r++) _mm_prefetch(ahead + 64 * r, _MM_HINT_T1);
    return ahead + 64 * R;
}

/* 16 bf16 weights are one load. Seen as eight 32-bit words, the word shifted left by 16 is the even weight as
 * float32, and the word without its low half is the odd one. */
AVX2_INLINE void avx2_bf16(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                           const char *ahead, int interval) {
    const int64_t k = job->w->k, steps = k / 16, tail = k % 16;
    const uint16_t *w = (const uint16_t *)job->w->weight + n * k;
    const float *x = (const float *)job->x + m0 * job->stride;
    __m256 sum[ROWS_MAX][TILE_MAX];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = _mm256_setzero_ps();
#define HALF_STEP(ROW, WIDEN, OFFSET)                                                             \
    do {                                                                                          \
        __m256 wide[ROWS_MAX];                                                                    \
        for (int r = 0; r < R; r++) {                                                             \
            const __m256i raw = _mm256_loadu_si256((const __m256i *)(ROW));                       \
            wide[r] = _mm256_castsi256_ps(WIDEN);                                                 \
        }                                                                                         \
        for (int m = 0; m < M; m++) {                                                             \
            const __m256 v = _mm256_load_ps(x + 16 * m + (OFFSET));                               \
            for (int r = 0; r < R; r++) sum[r][m] = _mm256_fmadd_ps(wide[r], v, sum[r][m]);       \
        }                                                                                         \
    } while (0)
/* Two shifts rather than a mask: the mask would take a register that the accumulators need. */
#define STEP(ROW)                                                                                 \
    do {                                                                                          \
        HALF_STEP(ROW, _mm256_slli_epi32(raw, 16), 0);                                            \
        HALF_STEP(ROW, _mm256_slli_epi32(_mm256_srli_epi32(raw, 16), 16), 8);                     \
        x += 16 * M;                                                                              \
    } while (0)
    for (int64_t s = 0; s < steps;) {
        const int64_t end = s + 2 * interval < steps ? s + 2 * interval : steps;
        ahead = avx2_prefetch_second(R, ahead);
        for (; s < end; s++) STEP(w + r * k + 16 * s);
    }
    if (tail) {
        uint16_t last[ROWS_MAX][16];
        memset(last, 0, sizeof last);
        for (int r = 0; r < R; r++) memcpy(last[r], w + r * k + 16 * steps, (size_t)tail * 2);
        STEP(last[r]);
    }
#undef STEP
#undef HALF_STEP
    avx2_finish(M, R, job, n, m0, sum);
}

/* Sum of the products of 16 * vectors pairs, eight lanes; integers and so exact: 127 * 32767 * 8 < 2^31. */
AVX2_INLINE __m256 avx2_dot(const __m256i *w, const int16_t *x, const int vectors) {
    __m256i sum = _mm256_madd_epi16(w[0], _mm256_load_si256((const __m256i *)x));
    for (int i = 1; i < vectors; i++)
        sum = _mm256_add_epi32(
            sum, _mm256_madd_epi16(w[i], _mm256_load_si256((const __m256i *)(x + 16 * i))));
    return _mm256_cvtepi32_ps(sum);
}

AVX2_INLINE void avx2_int8(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                           const char *ahead, int interval) {
    const int64_t k = job->stride, steps = k / 64;
    const int8_t *w = (const int8_t *)job->w->weight + n * k;
    const int16_t *x = (const int16_t *)job->x + m0 * k;
    const float *x_scale = job->x_scale + m0 * steps;
    __m256 sum[ROWS_MAX][TILE_MAX];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = _mm256_setzero_ps();
    for (int64_t s = 0; s < steps;) {
        const int64_t end = s + interval < steps ? s + interval : steps;
        ahead = avx2_prefetch(R, ahead);
        for (; s < end; s++) {
            for (int r = 0; r < R; r++) {
                __m256i wide[4];
                for (int i = 0; i < 4; i++)
                    wide[i] = _mm256_cvtepi8_epi16(
                        _mm_loadu_si128((const __m128i *)(w + r * k + 64 * s + 16 * i)));
                for (int m = 0; m < M; m++)
                    sum[r][m] = _mm256_fmadd_ps(avx2_dot(wide, x + 64 * m, 4),
                                                _mm256_broadcast_ss(x_scale + m), sum[r][m]);
            }
            x += 64 * M;
            x_scale += M;
        }
    }
    avx2_finish(M, R, job, n, m0, sum);
}

/* The 32 weights of a group as two vectors of int16 */
AVX2_INLINE void avx2_nibbles(const uint8_t *bytes, __m256i wide[2]) {
    const __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)bytes));
    wide[0] = _mm256_and_si256(pairs, _mm256_set1_epi16(15));
    wide[1] = _mm256_srli_epi16(pairs, 4);
}

AVX2_INLINE void avx2_int4(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                           const char *ahead, int interval) {
    const int64_t k = job->stride, steps = k / 64, groups = job->groups;
    const uint8_t *w = (const uint8_t *)job->w->weight + n * (k / 2);
    const uint16_t *scale = (const uint16_t *)job->w->scale + n * groups;
    const uint16_t *minimum = (const uint16_t *)job->w->minimum + n * groups;
    const int16_t *x = (const int16_t *)job->x + m0 * k;
    const float *x_scale = job->x_scale + m0 * steps, *x_sum = job->x_sum + m0 * groups;
    __m256 sum[ROWS_MAX][TILE_MAX];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = _mm256_setzero_ps();
    for (int64_t s = 0; s < steps;) {
        float scales[ROWS_MAX][8] __attribute__((aligned(32)));
        for (int r = 0; r < R; r++)
            _mm256_store_ps(scales[r], _mm256_cvtph_ps(_mm_loadu_si128(
                                           (const __m128i *)(scale + r * groups + 2 * s))));
        const int64_t end = s + 4 < steps ? s + 4 : steps;
        for (; s < end; s++) {
            if (s % (2 * interval) == 0) ahead = avx2_prefetch(R, ahead);
            for (int r = 0; r < R; r++) {
                __m256i first[2], second[2];
                avx2_nibbles(w + r * (k / 2) + 32 * s, first);
                avx2_nibbles(w + r * (k / 2) + 32 * s + 16, second);
                const __m256 scale0 = _mm256_broadcast_ss(scales[r] + 2 * (s % 4));
                const __m256 scale1 = _mm256_broadcast_ss(scales[r] + 2 * (s % 4) + 1);
                for (int m = 0; m < M; m++) {
                    __m256 dot = _mm256_mul_ps(avx2_dot(first, x + 64 * m, 2), scale0);
                    dot = _mm256_fmadd_ps(avx2_dot(second, x + 64 * m + 32, 2), scale1, dot);
                    sum[r][m] = _mm256_fmadd_ps(dot, _mm256_broadcast_ss(x_scale + m), sum[r][m]);
                }
            }
            x += 64 * M;
            x_scale += M;
        }
    }
    for (int64_t g = 0; g < groups; g += 8, x_sum += 8 * M)
        for (int r = 0; r < R; r++) {
            const __m256 v =
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(minimum + r * groups + g)));
            for (int m = 0; m < M; m++)
                sum[r][m] = _mm256_fmadd_ps(v, _mm256_load_ps(x_sum + 8 * m), sum[r][m]);
        }
    avx2_finish(M, R, job, n, m0, sum);
}

#define TILE(FORMAT, M, R)                                                                        \
    AVX2 static void avx2_##FORMAT##_##M##_##R(const linear_job *job, int64_t n, int64_t m,       \
                                               const char *ahead, int interval) {                 \
        avx2_##FORMAT(M, R, job, n, m, ahead, interval);                                          \
    }
#define BOTH(FORMAT, M, R) {R, avx2_##FORMAT##_##M##_##R, avx2_##FORMAT##_##M##_1}

TILE(bf16, 1, 6) TILE(bf16, 2, 4) TILE(bf16, 3, 3) TILE(bf16, 4, 3) TILE(bf16, 5, 2) TILE(bf16, 6, 2)
TILE(bf16, 1, 1) TILE(bf16, 2, 1) TILE(bf16, 3, 1) TILE(bf16, 4, 1) TILE(bf16, 5, 1) TILE(bf16, 6, 1)
TILE(int8, 1, 2) TILE(int8, 2, 2)
TILE(int8, 1, 1) TILE(int8, 2, 1) TILE(int8, 3, 1) TILE(int8, 4, 1)
TILE(int8, 5, 1) TILE(int8, 6, 1) TILE(int8, 7, 1) TILE(int8, 8, 1)
TILE(int4, 1, 2) TILE(int4, 2, 2)
TILE(int4, 1, 1) TILE(int4, 2, 1) TILE(int4, 3, 1) TILE(int4, 4, 1)
TILE(int4, 5, 1) TILE(int4, 6, 1) TILE(int4, 7, 1) TILE(int4, 8, 1)

#define INTEGER_KERNEL(FORMAT)                                                                    \
    {avx2_pack_integers, 64, 2, 8, 8, {{0, 0, 0}, BOTH(FORMAT, 1, 2), BOTH(FORMAT, 2, 2),                \
                                BOTH(FORMAT, 3, 1), BOTH(FORMAT, 4, 1), BOTH(FORMAT, 5, 1),       \
                                BOTH(FORMAT, 6, 1), BOTH(FORMAT, 7, 1), BOTH(FORMAT, 8, 1)}}
static const kernel AVX2_KERNELS[3] = {
    {avx2_pack_floats, 16, 4, 6, 4, {{0, 0, 0}, BOTH(bf16, 1, 6), BOTH(bf16, 2, 4), BOTH(bf16, 3, 3),
                              BOTH(bf16, 4, 3), BOTH(bf16, 5, 2), BOTH(bf16, 6, 2)}},
    INTEGER_KERNEL(int8),
    INTEGER_KERNEL(int4),
};
