/* y[m, n] = sum_k x[m, k] * w[n, k] (+ bias[n]) for few rows m, weights of 16, 8 or 4 bits.
 *
 * The kernels are bound by the reading of weights from memory, so each weight is read once a call and
 * widened once for as many activation rows as registers hold. The value of an output depends only on its own
 * activation row and weight row: not on the other rows, the tile, the thread or the number of threads. One
 * exception: with AVX-512, int8 weights times WIDE_ROWS activation rows or more (a draft that reads a prompt)
 * round activations to bf16 instead of 16-bit integers. */
#ifndef ANYDRAFT_LINEAR_H
#define ANYDRAFT_LINEAR_H

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
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

/* y [m, n] = x [m, k] @ weight [n, k]^T + bias; x and y contiguous, both bf16 or both float32.
 * Returns 0, or 1 if memory ran out. */
int anydraft_linear(const linear_weight *w, const void *x, void *y, int64_t m, int is_bf16, int threads);

/* body(argument) in the caller and in up to threads - 1 others at once; they share out the work themselves. */
void anydraft_parallel(void (*body)(void *), void *argument, int threads);

/* Whether the kernels in use are those for AVX2 or better. */
int anydraft_simd(void);

/* One call. The m activation rows are cut into `tiles` runs of equal length or one less; the rows of a tile
 * lie interleaved, so that a tile reads its activations in one ascending run:
 *   bf16: float32 [stride / 16 steps][rows of the tile][16]; of each 16 the 8 even ones, then the 8 odd ones;
 *         with AVX-512 instead bf16 [stride / 32 steps][rows of the tile][32].
 *   int8, int4: int16 [stride / 64 steps][rows of the tile][64], x_scale float32 [steps][rows], and for int4
 *         x_sum, the sum of each 32, float32 [groups / 8][rows][8]. */
typedef struct {
    const linear_weight *w;
    const void *source; /* [m, k] contiguous, bf16 or float32 as y */
    void *y;
    int is_bf16;
    int64_t m, tiles, stride, groups;
    void *x;
    float *x_scale, *x_sum;
    const struct kernel *kernel;
    const uint16_t *widened;  /* weight rows from `first` on as bf16, a thread's own; null: as they are stored */
    int64_t first;
    int64_t chunk;            /* weight rows that a thread claims at once */
    atomic_int_fast64_t next; /* the first unclaimed row */
    atomic_int failed;        /* a thread had no memory */
} linear_job;

/* First row of a tile; that of tile + 1 is its end. */
static inline int64_t tile_start(const linear_job *job, int64_t tile) {
    const int64_t extra = job->m % job->tiles;
    return tile * (job->m / job->tiles) + (tile < extra ? tile : extra);
}

/* Computes weight rows n.. for the tile that starts at activation row m. While it reads, it prefetches from
 * `ahead` on: for every `interval` cache lines that it has read of each of its weight rows, as many lines as
 * it has weight rows. */
typedef void (*tile_fn)(const linear_job *job, int64_t n, int64_t m, const char *ahead, int interval);

/* Packs `rows` activation rows from row m on, one tile. */
typedef void (*pack_fn)(const linear_job *job, int64_t m, int64_t rows);

enum { TILE_MAX = 8, WIDE_ROWS = 32 };
typedef struct kernel {
    pack_fn pack;
    int step;   /* columns are padded to a multiple of it */
    int bytes;  /* of a packed activation */
    int single; /* the most activation rows that one tile takes */
    int most;   /* the most of each, if there are several; such tiles, of most / 2 rows or more, are alike in `rows` */
    struct {
        int rows;
        tile_fn many, one; /* for `rows` weight rows, for one weight row */
    } tile[TILE_MAX + 1]; /* by activation rows */
} kernel;

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

static inline float source_value(const linear_job *job, int64_t m, int64_t k) {
    const int64_t i = m * job->w->k + k;
    return job->is_bf16 ? bf16_to_float(((const uint16_t *)job->source)[i]) : ((const float *)job->source)[i];
}

static inline void store_output(const linear_job *job, int64_t m, int64_t n, float value) {
    const linear_weight *w = job->w;
    if (w->bias) value += w->bias[n];
    if (job->is_bf16) ((uint16_t *)job->y)[m * w->n + n] = float_to_bf16(value);
    else ((float *)job->y)[m * w->n + n] = value;
}

/* Scale of a group of activations whose greatest magnitude has these bits, and what brings them to int16.
 * A group with a value that is not finite gets NaN, and so its outputs are. */
static inline float group_scale(int32_t highest, float *to_integer) {
    float limit;
    memcpy(&limit, &highest, sizeof limit);
    *to_integer = 0;
    if (highest >= 0x7f800000) return NAN;
    if (limit < 1e-30f) return 0;
    *to_integer = 32767.0f / limit;
    return limit / 32767.0f;
}

#endif
