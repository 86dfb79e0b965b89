/* AVX-512 with bf16 products: bf16 weights times activations that are rounded to bf16, accumulated in float32,
 * with twice the products of a float32 step and no widening. int8 weights keep AVX2's numbers, to the last bit, with
 * VNNI's sums of products and twice the registers; times many activation rows they take the bf16 kernels on widened
 * weights. int4 has the AVX2 kernels. */
#define AVX512_TARGET target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")
#define AVX512 __attribute__((AVX512_TARGET))
#define AVX512_INLINE static inline __attribute__((always_inline, AVX512_TARGET))
enum { ROWS512_MAX = 8 };

AVX512 static void avx512_pack_bf16(const linear_job *job, int64_t m0, int64_t rows) {
    const int64_t k = job->w->k;
    for (int64_t m = 0; m < rows; m++) {
        const int64_t base = (m0 + m) * k;
        uint16_t *x = (uint16_t *)job->x + m0 * job->stride + m * 32;
        int64_t s = 0;
        for (; s + 32 <= k; s += 32, x += rows * 32) {
            __m512i raw;
            if (job->is_bf16) raw = _mm512_loadu_si512((const uint16_t *)job->source + base + s);
            else {
                const float *from = (const float *)job->source + base + s;
                raw = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
            }
            _mm512_store_si512(x, raw);
        }
        if (s < k)
            for (int64_t i = 0; i < 32; i++)
                x[i] = s + i < k ? float_to_bf16(source_value(job, m0 + m, s + i)) : 0;
    }
}

/* Lanes i and i + 8 first, then as for AVX2 */
AVX512_INLINE __m256 avx512_fold(__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

AVX512_INLINE void avx512_finish(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                                 __m512 sum[ROWS512_MAX][TILE_MAX]) {
    float value[ROWS512_MAX * TILE_MAX];
    for (int i = 0; i < M * R; i += 4) {
        __m256 folded[4];
        for (int j = 0; j < 4; j++) {
            const int at = i + j < M * R ? i + j : i;
            folded[j] = avx512_fold(sum[at / M][at % M]);
        }
        _mm_storeu_ps(value + i, avx2_sum4(folded[0], folded[1], folded[2], folded[3]));
    }
    const float *scale = job->widened ? job->w->scale : 0;
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++)
            store_output(job, m0 + m, n + r, scale ? value[r * M + m] * scale[n + r] : value[r * M + m]);
}

/* int8 weight rows n0 .. n1 as bf16, exactly (their scale comes last), with a pitch of k. */
AVX512 static void avx512_widen(const linear_weight *w, int64_t n0, int64_t n1, uint16_t *wide) {
    for (int64_t n = n0; n < n1; n++, wide += w->k) {
        const int8_t *row = (const int8_t *)w->weight + n * w->k_padded;
        for (int64_t i = 0; i < w->k; i += 32) {
            const __mmask32 mask = w->k - i < 32 ? (__mmask32)((1u << (w->k - i)) - 1) : ~(__mmask32)0;
            const __m256i codes = _mm256_maskz_loadu_epi8(mask, row + i);
            const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
            const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
            _mm512_mask_storeu_epi16(wide + i, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

/* Lane i of an accumulator takes columns 2 i and 2 i + 1 of every 32. */
AVX512_INLINE void avx512_bf16(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
                               const char *ahead, int interval) {
    const int64_t k = job->w->k, steps = k / 32, tail = k % 32;
    const uint16_t *w = job->widened ? job->widened + (n - job->first) * k : (const uint16_t *)job->w->weight + n * k;
    const uint16_t *x = (const uint16_t *)job->x + m0 * job->stride;
    __m512 sum[ROWS512_MAX][TILE_MAX];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = _mm512_setzero_ps();
#define STEP(LOAD)                                                                                \
    do {                                                                                          \
        __m512bh wide[ROWS512_MAX];                                                               \
        for (int r = 0; r < R; r++) wide[r] = (__m512bh)(LOAD);                                   \
        for (int m = 0; m < M; m++) {                                                             \
            const __m512bh v = (__m512bh)_mm512_load_si512(x + 32 * m);                           \
            for (int r = 0; r < R; r++) sum[r][m] = _mm512_dpbf16_ps(sum[r][m], wide[r], v);      \
        }                                                                                         \
        x += 32 * M;                                                                              \
    } while (0)
    for (int64_t s = 0; s < steps;) {
        const int64_t end = s + interval < steps ? s + interval : steps;
        ahead = avx2_prefetch_second(R, ahead);
        for (; s < end; s++) STEP(_mm512_loadu_si512(w + r * k + 32 * s));
    }
    if (tail) {
        const __mmask32 mask = (__mmask32)((1u << tail) - 1);
        STEP(_mm512_maskz_loadu_epi16(mask, w + r * k + 32 * steps));
    }
#undef STEP
    avx512_finish(M, R, job, n, m0, sum);
}

/* avx2_int8 with sums of products in one instruction. The activations of a row are loaded once for all weight rows. */
AVX512_INLINE void avx512_int8(const int M, const int R, const linear_job *job, int64_t n, int64_t m0,
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
        for (; s < end; s++, x += 64 * M, x_scale += M) {
            __m256i wide[ROWS_MAX][4];
            for (int r = 0; r < R; r++)
                for (int i = 0; i < 4; i++)
                    wide[r][i] = _mm256_cvtepi8_epi16(
                        _mm_loadu_si128((const __m128i *)(w + r * k + 64 * s + 16 * i)));
            for (int m = 0; m < M; m++) {
                const __m256i *v = (const __m256i *)(x + 64 * m);
                __m256i dot[ROWS_MAX];
                for (int r = 0; r < R; r++) dot[r] = _mm256_setzero_si256();
                for (int i = 0; i < 4; i++) {
                    const __m256i value = _mm256_load_si256(v + i);
                    for (int r = 0; r < R; r++) dot[r] = _mm256_dpwssd_epi32(dot[r], wide[r][i], value);
                }
                const __m256 scale = _mm256_broadcast_ss(x_scale + m);
                for (int r = 0; r < R; r++)
                    sum[r][m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), scale, sum[r][m]);
            }
        }
    }
    avx2_finish(M, R, job, n, m0, sum);
}

#define TILE512(FORMAT, M, R)                                                                     \
    AVX512 static void avx512_##FORMAT##_##M##_##R(const linear_job *job, int64_t n, int64_t m,   \
                                                   const char *ahead, int interval) {             \
        avx512_##FORMAT(M, R, job, n, m, ahead, interval);                                        \
    }
TILE512(bf16, 1, 8) TILE512(bf16, 2, 8) TILE512(bf16, 3, 6) TILE512(bf16, 4, 4)
TILE512(bf16, 5, 4) TILE512(bf16, 6, 4) TILE512(bf16, 7, 3) TILE512(bf16, 8, 3)
TILE512(bf16, 1, 1) TILE512(bf16, 2, 1) TILE512(bf16, 3, 1) TILE512(bf16, 4, 1)
TILE512(bf16, 5, 1) TILE512(bf16, 6, 1) TILE512(bf16, 7, 1) TILE512(bf16, 8, 1)
TILE512(int8, 1, 2) TILE512(int8, 2, 2) TILE512(int8, 3, 2) TILE512(int8, 4, 2) TILE512(int8, 5, 2) TILE512(int8, 6, 2)
TILE512(int8, 1, 1) TILE512(int8, 2, 1) TILE512(int8, 3, 1) TILE512(int8, 4, 1) TILE512(int8, 5, 1) TILE512(int8, 6, 1)
#define BOTH512(FORMAT, M, R) {R, avx512_##FORMAT##_##M##_##R, avx512_##FORMAT##_##M##_1}

static const kernel AVX512_KERNELS[3] = {
    {avx512_pack_bf16, 32, 2, 8, 6,
     {{0, 0, 0}, BOTH512(bf16, 1, 8), BOTH512(bf16, 2, 8), BOTH512(bf16, 3, 6), BOTH512(bf16, 4, 4),
      BOTH512(bf16, 5, 4), BOTH512(bf16, 6, 4), BOTH512(bf16, 7, 3), BOTH512(bf16, 8, 3)}},
    {avx2_pack_integers, 64, 2, 6, 6,
     {{0, 0, 0}, BOTH512(int8, 1, 2), BOTH512(int8, 2, 2), BOTH512(int8, 3, 2), BOTH512(int8, 4, 2),
      BOTH512(int8, 5, 2), BOTH512(int8, 6, 2)}},
    INTEGER_KERNEL(int4),
};
