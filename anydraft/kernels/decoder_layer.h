/* One layer of decoder.c, compiled once for each instruction set: the including file defines RUN_LAYER, the name
 * of the only function that is seen outside. Vectors of 8 floats; every length is a multiple of 8.
 *
 * Every value of a token is computed in an order that depends only on that token and on what it may see, never
 * on which other tokens share the pass: verifying a block gives the bits of decoding one token at a time. */
#include <math.h>
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

#include "decoder.h"

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef uint16_t h8 __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))

INLINE v8 load(const float *p) {
    v8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, v8 v) { memcpy(p, &v, sizeof v); }

INLINE v8 widen(const uint16_t *p) {
#if defined(__AVX2__) && defined(__FMA__)
    return (v8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    h8 h;
    memcpy(&h, p, sizeof h);
    i8 w = __builtin_convertvector(h, i8) << 16;
    return (v8)w;
#endif
}

INLINE v8 multiply_add(v8 a, v8 b, v8 c) {
#if defined(__AVX2__) && defined(__FMA__)
    return (v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE float sum(v8 v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

/* sum() of each of four */
INLINE void sum4(const v8 v[4], float *out) {
#if defined(__AVX2__) && defined(__FMA__)
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[0], (__m256)v[1]), _mm256_hadd_ps((__m256)v[2], (__m256)v[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
    for (int i = 0; i < 4; i++) out[i] = sum(v[i]);
#endif
}

/* e^x by 2^n * polynomial(r), relative error about 2e-7; 0 below -87, and e^88 above 88. */
INLINE v8 exp8(v8 x) {
    const v8 zero = {0}, low = zero - 87.0f, high = zero + 88.0f;
    i8 under = x < low, over = x > high;
    x = (v8)(((i8)x & ~(under | over)) | ((i8)low & under) | ((i8)high & over));
    const v8 magic = zero + 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    v8 shifted = x * 1.44269504088896341f + magic;
    v8 n = shifted - magic;
    v8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    i8 power = ((i8)shifted - (i8)magic + 127) << 23;
    v8 y = p * (v8)power;
    return (v8)((i8)y & ~under);
}

INLINE void rms_norm(const float *x, const float *weight, float *y, int64_t n, float eps) {
    v8 acc = {0};
    for (int64_t i = 0; i < n; i += 8) acc += load(x + i) * load(x + i);
    const float scale = 1.0f / sqrtf(sum(acc) / (float)n + eps);
    for (int64_t i = 0; i < n; i += 8) store(y + i, load(x + i) * scale * load(weight + i));
}

INLINE void rotate(float *x, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i += 8) {
        v8 a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
}

/* Norm and rotary of the token's heads, then its key and value into their slot. */
static void place_token(const decoder_pass *p, int64_t t) {
    const decoder *m = p->model;
    const decoder_layer *l = p->layer;
    const int64_t d = m->head_dim, half = d / 2, position = p->batch->positions[t];
    const float *cosine = l->cosine + position * half, *sine = l->sine + position * half;
    for (int64_t h = 0; h < m->heads; h++) {
        float *q = p->q + (t * m->heads + h) * d;
        if (l->q_norm) rms_norm(q, l->q_norm, q, d, m->eps);
        rotate(q, cosine, sine, half);
        for (int64_t i = 0; i < d; i++) q[i] *= m->attention_scale;
    }
    for (int64_t h = 0; h < m->kv_heads; h++) {
        float *k = p->k + (t * m->kv_heads + h) * d;
        const float *v = p->v + (t * m->kv_heads + h) * d;
        if (l->k_norm) rms_norm(k, l->k_norm, k, d, m->eps);
        rotate(k, cosine, sine, half);
        const int64_t at = ((p->batch->rows[t] * m->kv_heads + h) * m->slots + p->batch->slots[t]) * d;
        for (int64_t i = 0; i < d; i++) l->keys[at + i] = float_to_bf16(k[i]);
        for (int64_t i = 0; i < d; i++) l->values[at + i] = float_to_bf16(v[i]);
    }
}

/* The slots that token t may see, in ascending order: the row's first `context`, then its own branch. */
INLINE int64_t visible(const decoder_pass *p, int64_t t, int64_t *first, const int32_t **branch, int64_t *branch_count) {
    const decoder_batch *b = p->batch;
    const int64_t window = p->layer->window, position = b->positions[t];
    *first = window && position + 1 > window ? position + 1 - window : 0;
    const int64_t context = b->contexts[t];
    if (*first > context) *first = context;
    *branch = b->branches ? b->branches + t * b->branch_width : NULL;
    *branch_count = b->branches ? b->branch_counts[t] : 0;
    return context - *first + *branch_count;
}

/* A token's view of one head of keys or values: the slots of its row, one after the other. */
typedef struct {
    const uint16_t *start;
    const int32_t *branch;
    int64_t first, chain, d;
} slot_view;

INLINE const uint16_t *slot_row(const slot_view *view, int64_t i) {
    return view->start + (i < view->chain ? view->first + i : view->branch[i - view->chain]) * view->d;
}

/* Scores of HEADS queries with KEYS keys from i on; each has one accumulator over the dimensions. */
INLINE void score_block(const int HEADS, const int KEYS, const float *q, const slot_view *keys, int64_t i,
                        float *scores, int64_t stride) {
    const int64_t d = keys->d;
    const uint16_t *key[4];
    v8 acc[3][4];
    for (int k = 0; k < KEYS; k++) key[k] = slot_row(keys, i + k);
    for (int h = 0; h < HEADS; h++)
        for (int k = 0; k < KEYS; k++) acc[h][k] = (v8){0};
    for (int64_t j = 0; j < d; j += 8)
        for (int k = 0; k < KEYS; k++) {
            const v8 wide = widen(key[k] + j);
            for (int h = 0; h < HEADS; h++) acc[h][k] = multiply_add(wide, load(q + h * d + j), acc[h][k]);
        }
    for (int h = 0; h < HEADS; h++)
        if (KEYS == 4) sum4(acc[h], scores + h * stride + i);
        else scores[h * stride + i] = sum(acc[h][0]);
}

INLINE void score(const int HEADS, const float *q, const slot_view *keys, int64_t n, float *scores, int64_t stride) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) score_block(HEADS, 4, q, keys, i, scores, stride);
    for (; i < n; i++) score_block(HEADS, 1, q, keys, i, scores, stride);
}

/* Scores to weights that add up to 1; the row is padded to a multiple of 8. */
static void soften(float *s, int64_t n, int64_t padded) {
    for (int64_t i = n; i < padded; i++) s[i] = -INFINITY;
    v8 tops = load(s);
    for (int64_t i = 8; i < padded; i += 8) {
        const v8 v = load(s + i);
        const i8 above = v > tops;
        tops = (v8)(((i8)v & above) | ((i8)tops & ~above));
    }
    float top = tops[0];
    for (int i = 1; i < 8; i++) top = tops[i] > top ? tops[i] : top;
    v8 total = {0};
    for (int64_t i = 0; i < padded; i += 8) {
        const v8 e = exp8(load(s + i) - top);
        store(s + i, e);
        total += e;
    }
    const float inverse = 1.0f / sum(total);
    for (int64_t i = 0; i < padded; i += 8) store(s + i, load(s + i) * inverse);
}

/* Weighted sum of the values for HEADS heads, VECTORS * 8 dimensions from j on. */
INLINE void mix(const int HEADS, const int VECTORS, const float *weights, int64_t stride, const slot_view *values,
                int64_t n, int64_t j, float *out) {
    v8 acc[3][4];
    for (int h = 0; h < HEADS; h++)
        for (int c = 0; c < VECTORS; c++) acc[h][c] = (v8){0};
    for (int64_t i = 0; i < n; i++) {
        const uint16_t *value = slot_row(values, i) + j;
        for (int c = 0; c < VECTORS; c++) {
            const v8 wide = widen(value + 8 * c);
            for (int h = 0; h < HEADS; h++)
                acc[h][c] = multiply_add(wide, (v8){0} + weights[h * stride + i], acc[h][c]);
        }
    }
    for (int h = 0; h < HEADS; h++)
        for (int c = 0; c < VECTORS; c++) store(out + h * values->d + j + 8 * c, acc[h][c]);
}

INLINE void attend_heads(const int HEADS, const float *q, const slot_view *keys, const slot_view *values, int64_t n,
                         float *scores, int64_t padded, float *out) {
    score(HEADS, q, keys, n, scores, padded);
    for (int h = 0; h < HEADS; h++) soften(scores + h * padded, n, padded);
    int64_t j = 0;
    for (; j + 32 <= keys->d; j += 32) mix(HEADS, 4, scores, padded, values, n, j, out);
    for (; j < keys->d; j += 8) mix(HEADS, 1, scores, padded, values, n, j, out);
}

static void attend(const decoder_pass *p, int64_t t, int64_t kv_head, float *scores) {
    const decoder *m = p->model;
    const int64_t d = m->head_dim, group = m->heads / m->kv_heads;
    int64_t first, branch_count;
    const int32_t *branch;
    const int64_t n = visible(p, t, &first, &branch, &branch_count), padded = (n + 7) / 8 * 8;
    const int64_t base = (p->batch->rows[t] * m->kv_heads + kv_head) * m->slots * d;
    const slot_view keys = {p->layer->keys + base, branch, first, n - branch_count, d};
    const slot_view values = {p->layer->values + base, branch, first, n - branch_count, d};
    const int64_t at = (t * m->heads + kv_head * group) * d;
    int64_t g = 0;
    for (; g + 3 <= group && g + 4 != group; g += 3) /* four are two pairs */
        attend_heads(3, p->q + at + g * d, &keys, &values, n, scores, padded, p->attended + at + g * d);
    for (; g + 2 <= group; g += 2)
        attend_heads(2, p->q + at + g * d, &keys, &values, n, scores, padded, p->attended + at + g * d);
    if (g < group) attend_heads(1, p->q + at + g * d, &keys, &values, n, scores, padded, p->attended + at + g * d);
}

static void attend_task(void *argument) {
    decoder_pass *p = argument;
    const int64_t kv_heads = p->model->kv_heads, n = p->batch->n * kv_heads;
    float *scores = p->scores + p->strip * atomic_fetch_add(&p->next_strip, 1);
    for (int64_t i; (i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < n;)
        attend(p, i / kv_heads, i % kv_heads, scores);
}

/* gate <- activation(gate) * up */
static void activate(const decoder_pass *p, int64_t t) {
    const int64_t n = p->model->mlp;
    float *gate = p->gate + t * n;
    const float *up = p->up + t * n;
    if (p->model->activation == ACTIVATION_SILU) {
        for (int64_t i = 0; i < n; i += 8) {
            v8 g = load(gate + i);
            store(gate + i, g / (1.0f + exp8(-g)) * load(up + i));
        }
    } else { /* gelu, tanh form: 0.5 g (1 + tanh(y)) = g / (1 + e^-2y) */
        for (int64_t i = 0; i < n; i += 8) {
            v8 g = load(gate + i);
            v8 y = 0.7978845608028654f * (g + 0.044715f * g * g * g);
            store(gate + i, g / (1.0f + exp8(-2.0f * y)) * load(up + i));
        }
    }
}

static void activate_task(void *argument) {
    decoder_pass *p = argument;
    for (int64_t t; (t = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->batch->n;)
        activate(p, t);
}

/* x <- x + y, after the norm of y that Gemma puts there */
static void add(float *x, float *y, const float *post_norm, int64_t n, float eps) {
    if (post_norm) rms_norm(y, post_norm, y, n, eps);
    for (int64_t i = 0; i < n; i += 8) store(x + i, load(x + i) + load(y + i));
}

static void norm_all(const float *x, const float *weight, float *y, int64_t n, int64_t hidden, float eps) {
    for (int64_t t = 0; t < n; t++) rms_norm(x + t * hidden, weight, y + t * hidden, hidden, eps);
}

int RUN_LAYER(decoder_pass *p, const decoder_layer *l, int threads) {
    const decoder *m = p->model;
    const int64_t n = p->batch->n;
    p->layer = l;
    norm_all(p->x, l->attention_norm, p->normed, n, m->hidden, m->eps);
    int failed = anydraft_linear(&l->q, p->normed, p->q, n, 0, threads);
    failed |= anydraft_linear(&l->k, p->normed, p->k, n, 0, threads);
    failed |= anydraft_linear(&l->v, p->normed, p->v, n, 0, threads);
    for (int64_t t = 0; t < n; t++) place_token(p, t);
    p->next = p->next_strip = 0;
    anydraft_parallel(attend_task, p, threads);
    failed |= anydraft_linear(&l->o, p->attended, p->projected, n, 0, threads);
    for (int64_t t = 0; t < n; t++)
        add(p->x + t * m->hidden, p->projected + t * m->hidden, l->post_attention_norm, m->hidden, m->eps);
    norm_all(p->x, l->mlp_norm, p->normed, n, m->hidden, m->eps);
    failed |= anydraft_linear(&l->gate, p->normed, p->gate, n, 0, threads);
    failed |= anydraft_linear(&l->up, p->normed, p->up, n, 0, threads);
    p->next = 0;
    anydraft_parallel(activate_task, p, n > 1 ? threads : 1);
    failed |= anydraft_linear(&l->down, p->gate, p->projected, n, 0, threads);
    for (int64_t t = 0; t < n; t++)
        add(p->x + t * m->hidden, p->projected + t * m->hidden, l->post_mlp_norm, m->hidden, m->eps);
    return failed;
}
