/* y[m, n] = sum_k x[m, k] * w[n, k] (+ bias[n]) for few rows m, weights of 16, 8 or 4 bits.
 *
 * The kernels are bound by the reading of weights from memory, so each weight is read once a call and
 * widened once for as many activation rows as registers hold. The value of an output depends only on its own
 * activation row and weight row: not on the other rows, the tile, the thread or the number of threads. */
#ifndef ANYDRAFT_LINEAR_H
#define ANYDRAFT_LINEAR_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_BF16 = 0, FORMAT_INT8 = 1, FORMAT_INT4 = 2 };

/* A weight matrix of n rows and k columns. k_padded: columns as stored.
 *   bf16: uint16 [n, k], k_padded = k.
 *   int8: int8 [n, k_padded], scale float32 [n]; k_padded a multiple of 64.
 *   int4: uint8 [n, k_padded / 2]; of each group of 32 the low nibbles of 16 bytes are the first 16 weights,
 *         the high nibbles the other 16; weight = scale * nibble + minimum, both float16 [n, groups], where
 *         groups = k_padded / 32 rounded up to a multiple of 8.
 * bias: float32 [n] or null. */
typedef struct {
    int64_t n, k, k_padded, format;
    const void *weight, *scale, *minimum;
    const float *bias;
} linear_weight;

/* One call. Activations as the format wants them:
 *   bf16: float32, of each 16 the 8 even ones, then the 8 odd ones; rows of x_stride, zero-padded.
 *   int8, int4: int16 with one scale for each 64, and (int4) the sum of each 32; rows of k_padded. */
typedef struct {
    const linear_weight *w;
    int64_t m, x_stride, groups; /* groups: see linear_weight */
    const void *x;
    const float *x_scale, *x_sum;
    void *y;
    int y_is_bf16;
    int64_t chunk;       /* weight rows that a thread claims at once */
    atomic_int_fast64_t next; /* the first unclaimed weight row */
} linear_job;

/* Computes weight rows n.. for activation rows m.. (how many is the tile's own shape). While it reads, it
 * prefetches from `ahead` on: for every `interval` cache lines that it has read of each of its weight rows,
 * as many lines as it has weight rows. */
typedef void (*tile_fn)(const linear_job *job, int64_t n, int64_t m, const char *ahead, int interval);

/* Tiles for 1 .. TILE_MAX activation rows. More rows are cut into tiles of `most` or one less. */
enum { TILE_MAX = 8 };
typedef struct {
    int single; /* the most rows that one tile takes alone */
    int most;
    struct {
        int rows;
        tile_fn many, one; /* `rows` weight rows, one weight row */
    } tile[TILE_MAX + 1];
} tile_set;

static inline float bf16_to_float(uint16_t v) {
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Round to nearest even; a NaN stays one. */
static inline uint16_t float_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline void store_output(const linear_job *job, int64_t m, int64_t n, float value) {
    const linear_weight *w = job->w;
    if (w->bias) value += w->bias[n];
    if (job->y_is_bf16) ((uint16_t *)job->y)[m * w->n + n] = float_to_bf16(value);
    else ((float *)job->y)[m * w->n + n] = value;
}

#endif
