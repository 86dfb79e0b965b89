#include "linear.h"

#include "portable.h"
#include "threads.h"
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2 1
#include "avx2.h"
#if (defined(__clang__) && __clang_major__ >= 14) || (!defined(__clang__) && __GNUC__ >= 11)
#define HAVE_AVX512 1
#include "avx512.h"
#endif
#endif

#define EXPORT __attribute__((visibility("default")))

/* Activation tiles of about ACTIVATION_BYTES stay in the second-level cache while a chunk of weight rows
 * passes over them. */
enum { ACTIVATION_BYTES = 256 * 1024, CHUNK_BYTES = 128 * 1024, MIN_CHUNK = 24, PARALLEL_PACK = 1 << 16 };

static const kernel *kernels = PORTABLE;

static int64_t row_bytes(const linear_weight *w) {
    return w->format == FORMAT_BF16 ? 2 * w->k : w->format == FORMAT_INT8 ? w->k_padded : w->k_padded / 2;
}

static void pack(void *argument) {
    linear_job *job = argument;
    const pack_fn pack_tile = job->kernel->pack;
    for (int64_t t; (t = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->tiles;)
        pack_tile(job, tile_start(job, t), tile_start(job, t + 1) - tile_start(job, t));
}

/* Weight rows n0 .. n1 for all activation rows; `after` is the row that this thread takes next. */
static void multiply_chunk(const linear_job *job, int64_t n0, int64_t n1, int64_t after) {
    const kernel *kernel = job->kernel;
    const char *weight = job->w->weight;
    const int64_t bytes = row_bytes(job->w), largest = tile_start(job, 1);
    const int64_t tile_bytes = largest * job->stride * kernel->bytes;
    const int64_t block = tile_bytes * 2 > ACTIVATION_BYTES ? 2 : ACTIVATION_BYTES / tile_bytes;
    const int rows = kernel->tile[largest].rows;
    for (int64_t first = 0; first < job->tiles; first += block) {
        const int64_t last = first + block < job->tiles ? first + block : job->tiles, tiles = last - first;
        for (int64_t n = n0; n < n1;) {
            const int whole = n1 - n >= rows;
            const int64_t step = whole ? rows : 1;
            /* only the first pass reads from memory */
            const int64_t next = first ? n : n + step < n1 ? n + step : after;
            const char *ahead = weight + (next < job->w->n ? next : n) * bytes;
            for (int64_t t = first; t < last; t++) {
                const int64_t m = tile_start(job, t), count = tile_start(job, t + 1) - m;
                (whole ? kernel->tile[count].many : kernel->tile[count].one)(job, n, m, ahead, (int)tiles);
                ahead += step * bytes / tiles / 64 * 64;
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

#ifdef HAVE_AVX512
static void multiply_widened(void *argument) {
    linear_job *shared = argument, job;
    memcpy(&job, shared, offsetof(linear_job, next)); /* what follows changes while the threads run */
    const int64_t n = job.w->n;
    uint16_t *wide = malloc((size_t)(job.chunk * job.w->k * 2));
    if (!wide) {
        atomic_store(&shared->failed, 1);
        return;
    }
    job.widened = wide;
    while ((job.first = claim(shared)) < n) {
        const int64_t end = job.first + job.chunk < n ? job.first + job.chunk : n;
        avx512_widen(job.w, job.first, end, wide);
        multiply_chunk(&job, job.first, end, job.first);
    }
    free(wide);
}
#endif

EXPORT void anydraft_parallel(void (*body)(void *), void *argument, int threads) {
    pool_run(body, argument, threads);
}

/* Chooses the best kernels of this processor up to a level (0 portable, 1 AVX2, 2 AVX-512) and returns their name. */
EXPORT const char *anydraft_select(int level) {
#ifdef HAVE_AVX2
    __builtin_cpu_init();
    if (level >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c")) {
#ifdef HAVE_AVX512
        if (level >= 2 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq")) {
            kernels = AVX512_KERNELS;
            return "avx512";
        }
#endif
        kernels = AVX2_KERNELS;
        return "avx2";
    }
#else
    (void)level;
#endif
    kernels = PORTABLE;
    return "portable";
}

EXPORT int anydraft_simd(void) { return kernels != PORTABLE; }

EXPORT int anydraft_linear(const linear_weight *w, const void *x, void *y, int64_t m, int is_bf16, int threads) {
    if (m <= 0) return 0;
    void (*body)(void *) = multiply;
    int format = (int)w->format;
#ifdef HAVE_AVX512
    if (kernels == AVX512_KERNELS && w->format == FORMAT_INT8 && m >= WIDE_ROWS) {
        body = multiply_widened;
        format = FORMAT_BF16;
    }
#endif
    const int integers = format != FORMAT_BF16;
    const kernel *kernel = &kernels[format];
    linear_job job = {.w = w, .source = x, .y = y, .is_bf16 = is_bf16, .m = m, .kernel = kernel};
    job.tiles = m <= kernel->single ? 1 : (m + kernel->most - 1) / kernel->most;
    job.stride = (w->k_padded + kernel->step - 1) / kernel->step * kernel->step;
    job.groups = (w->k_padded / 32 + 7) / 8 * 8;

    const int64_t x_bytes = (m * job.stride * kernel->bytes + 63) / 64 * 64;
    const int64_t scales = integers ? (m * (job.stride / 64) + 15) / 16 * 16 : 0;
    const int64_t sums = w->format == FORMAT_INT4 ? m * job.groups : 0;
    void *buffer = 0;
    if (posix_memalign(&buffer, 64, (size_t)(x_bytes + (scales + sums) * 4))) return 1;
    job.x = buffer;
    job.x_scale = (float *)((char *)buffer + x_bytes);
    job.x_sum = sums ? job.x_scale + scales : 0;
    anydraft_parallel(pack, &job, m * w->k >= PARALLEL_PACK ? threads : 1);

    const int64_t share = (w->n / (4 * (threads > 0 ? threads : 1)) + MIN_CHUNK - 1) / MIN_CHUNK * MIN_CHUNK;
    job.chunk = CHUNK_BYTES / (body == multiply ? row_bytes(w) : 2 * w->k) / MIN_CHUNK * MIN_CHUNK;
    if (job.chunk > share) job.chunk = share;
    if (job.chunk < MIN_CHUNK) job.chunk = MIN_CHUNK;
    atomic_store(&job.next, 0);
    anydraft_parallel(body, &job, w->n > job.chunk ? threads : 1);
    free(buffer);
    return job.failed;
}
