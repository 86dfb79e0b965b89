/* A pool of threads for bodies that share out their work by themselves (by an atomic counter).
 *
 * The caller works too and waits only for threads that have begun: one that the system does not run in time
 * is not needed. So a busy machine costs the share of the processor that it takes and no more, where a
 * barrier of all threads would cost whole time slices. */
#include <pthread.h>
#include <sched.h>

typedef void (*body_fn)(void *argument);

enum { POOL_MAX = 255, SPINS = 4000 };

static struct {
    pthread_mutex_t owner; /* held by the one caller that uses the pool */
    pthread_mutex_t sleep;
    pthread_cond_t wake;
    int threads;     /* that exist */
    int sleeping;    /* of them, under `sleep` */
    /* state: job number * 512 + (accepts threads ? 256 : 0) + threads at work */
    atomic_uint_fast64_t state;
    atomic_int wanted; /* threads with a lower index take part */
    body_fn body;
    void *argument;
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER, .sleep = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Whether the pool has a job, newer than `seen`, that thread `index` may join. */
static inline int pool_open(uint64_t state, uint64_t seen, int index) {
    return (state & 256) && state / 512 != seen && index < atomic_load(&pool.wanted);
}

static void *pool_thread(void *argument) {
    const int index = (int)(intptr_t)argument;
    uint64_t seen = 0;
    for (;;) {
        uint64_t state = atomic_load(&pool.state);
        for (int i = 0; i < SPINS && !pool_open(state, seen, index); i++) {
            pause_briefly();
            state = atomic_load(&pool.state);
        }
        if (!pool_open(state, seen, index)) {
            pthread_mutex_lock(&pool.sleep);
            pool.sleeping++;
            while (!pool_open(atomic_load(&pool.state), seen, index)) pthread_cond_wait(&pool.wake, &pool.sleep);
            pool.sleeping--;
            pthread_mutex_unlock(&pool.sleep);
            continue;
        }
        seen = state / 512;
        if (!atomic_compare_exchange_strong(&pool.state, &state, state + 1)) {
            seen--; /* another thread came or went: look again */
            continue;
        }
        pool.body(pool.argument);
        atomic_fetch_sub(&pool.state, 1);
    }
    return 0;
}

/* The threads of the parent do not exist in a forked child. */
static void pool_forget(void) {
    pool.threads = pool.sleeping = 0;
    pthread_mutex_init(&pool.owner, 0);
    pthread_mutex_init(&pool.sleep, 0);
    pthread_cond_init(&pool.wake, 0);
    atomic_store(&pool.state, 0);
}

static void pool_grow(int threads) {
    static int registered;
    if (!registered) registered = pthread_atfork(0, 0, pool_forget) == 0;
    while (pool.threads < threads && pool.threads < POOL_MAX) {
        pthread_t thread;
        if (pthread_create(&thread, 0, pool_thread, (void *)(intptr_t)pool.threads)) return;
        pthread_detach(thread);
        pool.threads++;
    }
}

/* Runs body(argument) in the caller and in up to threads - 1 others; returns when all that began are done. */
static void pool_run(body_fn body, void *argument, int threads) {
    if (threads <= 1 || pthread_mutex_trylock(&pool.owner)) {
        body(argument);
        return;
    }
    pool_grow(threads - 1);
    pool.body = body;
    pool.argument = argument;
    atomic_store(&pool.wanted, threads - 1);
    const uint64_t job = atomic_load(&pool.state) / 512 + 1;
    pthread_mutex_lock(&pool.sleep);
    atomic_store(&pool.state, job * 512 + 256);
    if (pool.sleeping) pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.sleep);
    body(argument);
    atomic_fetch_sub(&pool.state, 256);
    for (int i = 0; atomic_load(&pool.state) & 255; i++)
        if (i < SPINS) pause_briefly();
        else sched_yield();
    pthread_mutex_unlock(&pool.owner);
}
