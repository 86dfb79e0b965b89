/* Tiles for AVX2 + FMA + F16C. Each output has one accumulator of 8 lanes that takes the steps of k in
 * ascending order, so that its value is the same in every tile. */
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2,fma,f16c")))
#define ROWS_MAX 6

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

AVX2_INLINE const char *avx2_prefetch(const int R, const char *ahead) {
    for (int r = 0; r < R; r++) _mm_prefetch(ahead + 64 * r, _MM_HINT_T0);
    return ahead + 64 * R;
}

/* 16 bf16 weights are one load. Seen as eight 32-bit words, the word shifted left by 16 is the even weight as
 * float32, and the word without its low half is the odd one. */
AVX2_INLINE void avx2_bf16(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                           const char *ahead, int interval) {
    const int64_t k = job->w->k, steps = k / 16, tail = k % 16, stride = job->x_stride;
    const uint16_t *w = (const uint16_t *)job->w->weight + n * k;
    const float *x = (const float *)job->x + m0 * stride;
    __m256 sum[ROWS_MAX][TILE_MAX];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = _mm256_setzero_ps();
#define HALF_STEP(ROW, WIDEN, X)                                                                  \
    do {                                                                                          \
        __m256 wide[ROWS_MAX];                                                                    \
        for (int r = 0; r < R; r++) {                                                             \
            const __m256i raw = _mm256_loadu_si256((const __m256i *)(ROW));                       \
            wide[r] = _mm256_castsi256_ps(WIDEN);                                                 \
        }                                                                                         \
        for (int m = 0; m < M; m++) {                                                             \
            const __m256 v = _mm256_load_ps((X) + m * stride);                                    \
            for (int r = 0; r < R; r++) sum[r][m] = _mm256_fmadd_ps(wide[r], v, sum[r][m]);       \
        }                                                                                         \
    } while (0)
/* Two shifts rather than a mask: the mask would take a register that the accumulators need. */
#define STEP(ROW, X)                                                                              \
    do {                                                                                          \
        HALF_STEP(ROW, _mm256_slli_epi32(raw, 16), X);                                            \
        HALF_STEP(ROW, _mm256_slli_epi32(_mm256_srli_epi32(raw, 16), 16), (X) + 8);               \
    } while (0)
    for (int64_t s = 0; s < steps; s += 2 * interval) {
        ahead = avx2_prefetch(R, ahead);
        const int64_t end = s + 2 * interval < steps ? s + 2 * interval : steps;
        for (int64_t i = s; i < end; i++) STEP(w + r * k + 16 * i, x + 16 * i);
    }
    if (tail) {
        uint16_t last[ROWS_MAX][16];
        memset(last, 0, sizeof last);
        for (int r = 0; r < R; r++) memcpy(last[r], w + r * k + 16 * steps, (size_t)tail * 2);
        STEP(last[r], x + 16 * steps);
    }
#undef STEP
#undef HALF_STEP
    avx2_finish(M, R, job, n, m0, sum);
}

/* Eight sums of products of a group, in integers and so exact: 127 * 32767 * 8 < 2^31. */
AVX2_INLINE __m256 avx2_dot(const __m256i *w, const int16_t *x, const int vectors) {
    __m256i sum = _mm256_madd_epi16(w[0], _mm256_load_si256((const __m256i *)x));
    for (int i = 1; i < vectors; i++)
        sum = _mm256_add_epi32(
            sum, _mm256_madd_epi16(w[i], _mm256_load_si256((const __m256i *)(x + 16 * i))));
    return _mm256_cvtepi32_ps(sum);
}

AVX2_INLINE void avx2_int8(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                           const char *ahead, int interval) {
    const int64_t k = job->w->k_padded, groups = k / 64;
    const int8_t *w = (const int8_t *)job->w->weight + n * k;
    const int16_t *x = (const int16_t *)job->x + m0 * k;
    const float *x_scale = job->x_scale + m0 * groups;
    __m256 sum[ROWS_MAX][TILE_MAX];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = _mm256_setzero_ps();
    for (int64_t begin = 0; begin < groups; begin += interval) {
        ahead = avx2_prefetch(R, ahead);
        const int64_t end = begin + interval < groups ? begin + interval : groups;
        for (int64_t g = begin; g < end; g++)
            for (int r = 0; r < R; r++) {
                __m256i wide[4];
                for (int i = 0; i < 4; i++)
                    wide[i] = _mm256_cvtepi8_epi16(
                        _mm_loadu_si128((const __m128i *)(w + r * k + 64 * g + 16 * i)));
                for (int m = 0; m < M; m++)
                    sum[r][m] = _mm256_fmadd_ps(avx2_dot(wide, x + m * k + 64 * g, 4),
                                                _mm256_broadcast_ss(x_scale + m * groups + g), sum[r][m]);
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
    const int64_t k = job->w->k_padded, pairs = k / 64, groups = job->groups;
    const uint8_t *w = (const uint8_t *)job->w->weight + n * (k / 2);
    const uint16_t *scale = (const uint16_t *)job->w->scale + n * groups;
    const uint16_t *minimum = (const uint16_t *)job->w->minimum + n * groups;
    const int16_t *x = (const int16_t *)job->x + m0 * k;
    const float *x_scale = job->x_scale + m0 * pairs, *x_sum = job->x_sum + m0 * groups;
    __m256 sum[ROWS_MAX][TILE_MAX];
    float scales[ROWS_MAX][8] __attribute__((aligned(32)));
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = _mm256_setzero_ps();
    for (int64_t p = 0; p < pairs; p++) {
        if (p % (2 * interval) == 0) ahead = avx2_prefetch(R, ahead);
        if (p % 4 == 0)
            for (int r = 0; r < R; r++)
                _mm256_store_ps(scales[r], _mm256_cvtph_ps(_mm_loadu_si128(
                                               (const __m128i *)(scale + r * groups + 2 * p))));
        for (int r = 0; r < R; r++) {
            __m256i first[2], second[2];
            avx2_nibbles(w + r * (k / 2) + 32 * p, first);
            avx2_nibbles(w + r * (k / 2) + 32 * p + 16, second);
            const __m256 scale0 = _mm256_broadcast_ss(scales[r] + 2 * (p % 4));
            const __m256 scale1 = _mm256_broadcast_ss(scales[r] + 2 * (p % 4) + 1);
            for (int m = 0; m < M; m++) {
                const int16_t *v = x + m * k + 64 * p;
                __m256 dot = _mm256_mul_ps(avx2_dot(first, v, 2), scale0);
                dot = _mm256_fmadd_ps(avx2_dot(second, v + 32, 2), scale1, dot);
                sum[r][m] =
                    _mm256_fmadd_ps(dot, _mm256_broadcast_ss(x_scale + m * pairs + p), sum[r][m]);
            }
        }
    }
    for (int64_t g = 0; g < groups; g += 8)
        for (int r = 0; r < R; r++) {
            const __m256 v =
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(minimum + r * groups + g)));
            for (int m = 0; m < M; m++)
                sum[r][m] = _mm256_fmadd_ps(v, _mm256_load_ps(x_sum + m * groups + g), sum[r][m]);
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

#define INTEGER_TILES(FORMAT)                                                                     \
    {8, 8, {{0, 0, 0}, BOTH(FORMAT, 1, 2), BOTH(FORMAT, 2, 2), BOTH(FORMAT, 3, 1),                \
            BOTH(FORMAT, 4, 1), BOTH(FORMAT, 5, 1), BOTH(FORMAT, 6, 1), BOTH(FORMAT, 7, 1),       \
            BOTH(FORMAT, 8, 1)}}
static const tile_set AVX2_TILES[3] = {
    {6, 4, {{0, 0, 0}, BOTH(bf16, 1, 6), BOTH(bf16, 2, 4), BOTH(bf16, 3, 3), BOTH(bf16, 4, 3),
            BOTH(bf16, 5, 2), BOTH(bf16, 6, 2)}},
    INTEGER_TILES(int8),
    INTEGER_TILES(int4),
};
