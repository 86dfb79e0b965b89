#include "linear.h"

#include "portable.h"
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2 1
#include "avx2.h"
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Activation rows whose packed form takes about this much stay in the second-level cache while the weight
 * rows of a chunk are passed over them. */
enum { ACTIVATION_BYTES = 256 * 1024, CHUNK_BYTES = 128 * 1024, MIN_CHUNK = 12, PARALLEL_PACK = 1 << 16 };

/* ---- activations ---------------------------------------------------------------------------------- */

typedef struct {
    const linear_weight *w;
    int64_t m, x_stride, groups;
    const void *source; /* [m, k] contiguous */
    int source_is_bf16;
    void *x;
    float *x_scale, *x_sum;
    atomic_int_fast64_t next;
} pack_job;

static inline float source_value(const pack_job *job, int64_t i) {
    return job->source_is_bf16 ? bf16_to_float(((const uint16_t *)job->source)[i])
                               : ((const float *)job->source)[i];
}

static void pack_floats(const pack_job *job, int64_t m) {
    const int64_t k = job->w->k, base = m * k;
    float *x = (float *)job->x + m * job->x_stride;
    int64_t s = 0;
    for (; s + 16 <= k; s += 16)
        for (int i = 0; i < 8; i++) {
            x[s + i] = source_value(job, base + s + 2 * i);
            x[s + 8 + i] = source_value(job, base + s + 2 * i + 1);
        }
    if (s < k) {
        memset(x + s, 0, 16 * sizeof *x);
        for (int64_t i = 0; s + i < k; i++) x[s + i % 2 * 8 + i / 2] = source_value(job, base + s + i);
    }
}

/* Each 64 activations to int16 with one scale. What is not finite makes its outputs NaN. */
static void pack_integers(const pack_job *job, int64_t m) {
    const int64_t k = job->w->k, k_padded = job->w->k_padded;
    int16_t *x = (int16_t *)job->x + m * k_padded;
    for (int64_t s = 0; s < k_padded; s += 64) {
        float value[64] = {0};
        int32_t highest = 0;
        const int64_t count = k - s < 64 ? k - s : 64;
        for (int64_t i = 0; i < count; i++) value[i] = source_value(job, m * k + s + i);
        for (int i = 0; i < 64; i++) {
            int32_t bits;
            memcpy(&bits, value + i, sizeof bits);
            bits &= 0x7fffffff; /* ordered like the magnitudes, NaN above infinity */
            highest = bits > highest ? bits : highest;
        }
        float limit, to_integer = 0, scale = 0;
        memcpy(&limit, &highest, sizeof limit);
        if (highest >= 0x7f800000) scale = limit - limit;
        else if (limit > 1e-30f) {
            to_integer = 32767.0f / limit;
            scale = limit / 32767.0f;
        }
        int32_t sum[2] = {0, 0};
        for (int i = 0; i < 64; i++) {
            const float v = to_integer == 0 ? 0 : value[i] * to_integer;
            x[s + i] = (int16_t)(int32_t)(v + (v < 0 ? -0.5f : 0.5f));
        }
        for (int i = 0; i < 32; i++) sum[0] += x[s + i], sum[1] += x[s + 32 + i];
        job->x_scale[m * (k_padded / 64) + s / 64] = scale;
        for (int half = 0; job->x_sum && half < 2; half++)
            job->x_sum[m * job->groups + s / 32 + half] = (float)sum[half] * scale;
    }
    for (int64_t g = k_padded / 32; job->x_sum && g < job->groups; g++) job->x_sum[m * job->groups + g] = 0;
}

static void pack_rows(void *argument) {
    pack_job *job = argument;
    for (int64_t m; (m = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->m;)
        if (job->w->format == FORMAT_BF16) pack_floats(job, m);
        else pack_integers(job, m);
}

/* ---- weights -------------------------------------------------------------------------------------- */

static const tile_set *tile_sets = PORTABLE_TILES;

static int64_t row_bytes(const linear_weight *w) {
    return w->format == FORMAT_BF16 ? 2 * w->k : w->format == FORMAT_INT8 ? w->k_padded : w->k_padded / 2;
}

/* Weight rows n0 .. n1 for all activation rows; `after` is the row that this thread takes next. */
static void multiply_chunk(const linear_job *job, int64_t n0, int64_t n1, int64_t after) {
    const tile_set *set = &tile_sets[job->w->format];
    const char *weight = job->w->weight;
    const int64_t bytes = row_bytes(job->w);
    const int64_t element = job->w->format == FORMAT_BF16 ? 4 : 2;
    int64_t block = ACTIVATION_BYTES / (job->x_stride * element) / set->most * set->most;
    if (block < 2 * set->most) block = 2 * set->most;
    for (int64_t m0 = 0; m0 < job->m; m0 += block) {
        const int64_t size = job->m - m0 < block ? job->m - m0 : block;
        const int64_t tiles = size <= set->single ? 1 : (size + set->most - 1) / set->most;
        const int rows = set->tile[(size + tiles - 1) / tiles].rows;
        for (int64_t n = n0; n < n1;) {
            const int whole = n1 - n >= rows;
            const int64_t step = whole ? rows : 1;
            /* only the first pass reads from memory */
            const int64_t next = m0 ? n : n + step < n1 ? n + step : after;
            const char *ahead = weight + (next < job->w->n ? next : n) * bytes;
            for (int64_t i = 0, m = m0; i < tiles; i++) {
                const int64_t count = size / tiles + (i < size % tiles);
                (whole ? set->tile[count].many : set->tile[count].one)(
                    job, n, m, ahead + i * (step * bytes / tiles / 64 * 64), (int)tiles);
                m += count;
            }
            n += step;
        }
    }
}

static int64_t claim(linear_job *job) {
    return atomic_fetch_add_explicit(&job->next, job->chunk, memory_order_relaxed);
}

static void multiply(void *argument) {
    linear_job *job = argument;
    const int64_t n = job->w->n;
    for (int64_t begin = claim(job); begin < n;) {
        const int64_t after = claim(job);
        multiply_chunk(job, begin, begin + job->chunk < n ? begin + job->chunk : n, after);
        begin = after;
    }
}

/* ---- threads -------------------------------------------------------------------------------------- */

/* GOMP_parallel of the OpenMP runtime that the process has already, so that there are never two sets of
 * threads; null: everything in the calling thread. */
typedef void (*parallel_fn)(void (*body)(void *), void *argument, unsigned threads, unsigned flags);
static parallel_fn run_parallel;

EXPORT void anydraft_set_parallel(parallel_fn run) { run_parallel = run; }

static void run(void (*body)(void *), void *argument, int threads) {
    if (threads > 1 && run_parallel) run_parallel(body, argument, (unsigned)threads, 0);
    else body(argument);
}

/* ---- calls ---------------------------------------------------------------------------------------- */

/* Chooses the kernels (allow_simd 0: the portable ones) and returns their name. */
EXPORT const char *anydraft_select(int allow_simd) {
#ifdef HAVE_AVX2
    __builtin_cpu_init();
    if (allow_simd && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c")) {
        tile_sets = AVX2_TILES;
        return "avx2";
    }
#else
    (void)allow_simd;
#endif
    tile_sets = PORTABLE_TILES;
    return "portable";
}

static void *scratch(size_t bytes) {
#if defined(_WIN32)
    return _aligned_malloc(bytes, 64);
#else
    void *p = 0;
    return posix_memalign(&p, 64, bytes) ? 0 : p;
#endif
}

static void release(void *p) {
#if defined(_WIN32)
    _aligned_free(p);
#else
    free(p);
#endif
}

/* y [m, n] = x [m, k] @ weight [n, k]^T + bias; x and y contiguous, both bf16 or both float32.
 * Returns 0, or 1 if memory ran out. */
EXPORT int anydraft_linear(const linear_weight *w, const void *x, void *y, int64_t m, int is_bf16, int threads) {
    const int integers = w->format != FORMAT_BF16;
    const int64_t stride = integers ? w->k_padded : (w->k + 15) / 16 * 16;
    const int64_t scales = integers ? (m * (w->k_padded / 64) + 15) / 16 * 16 : 0;
    const int64_t groups = (w->k_padded / 32 + 7) / 8 * 8, sums = w->format == FORMAT_INT4 ? m * groups : 0;
    const int64_t x_bytes = (m * stride * (integers ? 2 : 4) + 63) / 64 * 64;
    char *buffer = scratch((size_t)(x_bytes + (scales + sums) * 4 + 64));
    if (!buffer) return 1;
    float *x_scale = (float *)(buffer + x_bytes), *x_sum = sums ? x_scale + scales : 0;

    pack_job pack = {w, m, stride, groups, x, is_bf16, buffer, x_scale, x_sum, 0};
    run(pack_rows, &pack, m * w->k >= PARALLEL_PACK ? threads : 1);

    int64_t chunk = CHUNK_BYTES / row_bytes(w) / 12 * 12;
    const int64_t share = (w->n / (4 * (threads > 0 ? threads : 1)) + 11) / 12 * 12;
    if (chunk > share) chunk = share;
    if (chunk < MIN_CHUNK) chunk = MIN_CHUNK;
    linear_job job = {w, m, stride, groups, buffer, x_scale, x_sum, y, is_bf16, chunk, 0};
    run(multiply, &job, w->n > chunk ? threads : 1);
    release(buffer);
    return 0;
}
