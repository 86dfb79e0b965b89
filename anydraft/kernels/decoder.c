/* A whole decoder-only forward pass (Llama, Mistral, Qwen2, Qwen3, Gemma-3) over weights that stay where they are.
 *
 * Rows of tokens at their own positions, keys and values in slots (anydraft/models/kv.py has the idea). Activations
 * are float32, weights what linear.h takes, keys and values bf16. */
#define RUN_LAYER decoder_run_layer_portable
#include "decoder_layer.h"

#define EXPORT __attribute__((visibility("default")))

static int run_layer(decoder_pass *p, const decoder_layer *layer, int threads) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (anydraft_simd()) return decoder_run_layer_avx2(p, layer, threads);
#endif
    return decoder_run_layer_portable(p, layer, threads);
}

static int64_t longest_context(const decoder_batch *b) {
    int64_t longest = 0;
    for (int64_t t = 0; t < b->n; t++) {
        const int64_t n = b->contexts[t] + (b->branches ? b->branch_counts[t] : 0);
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* logits: float32 [num_wanted, head.n]. Returns 0, or 1 when memory ran out. */
EXPORT int anydraft_decoder_forward(const decoder *m, const decoder_batch *b, float *logits, int threads) {
    const int64_t n = b->n, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    decoder_pass p = {.model = m, .batch = b};
    p.strip = (longest_context(b) + 8) * (m->heads / m->kv_heads);
    const int64_t floats = n * (3 * m->hidden + 2 * q + 2 * kv + 2 * m->mlp) + threads * p.strip;
    float *memory = aligned_alloc(64, (size_t)(floats * 4 + 63) / 64 * 64);
    if (!memory) return 1;
    float *at = memory;
    p.x = at, at += n * m->hidden;
    p.normed = at, at += n * m->hidden;
    p.projected = at, at += n * m->hidden;
    p.q = at, at += n * q;
    p.attended = at, at += n * q;
    p.k = at, at += n * kv;
    p.v = at, at += n * kv;
    p.gate = at, at += n * m->mlp;
    p.up = at, at += n * m->mlp;
    p.scores = at;
    for (int64_t t = 0; t < n; t++) {
        const uint16_t *row = m->embedding + b->ids[t] * m->hidden;
        for (int64_t i = 0; i < m->hidden; i++) p.x[t * m->hidden + i] = bf16_to_float(row[i]) * m->embedding_scale;
    }
    int failed = 0;
    for (int64_t i = 0; i < m->num_layers && !failed; i++) failed = run_layer(&p, &m->layers[i], threads);
    for (int64_t i = 0; i < b->num_wanted; i++)
        rms_norm(p.x + b->wanted[i] * m->hidden, m->final_norm, p.normed + i * m->hidden, m->hidden, m->eps);
    if (b->num_wanted && !failed) failed = anydraft_linear(&m->head, p.normed, logits, b->num_wanted, 0, threads);
    free(memory);
    return failed;
}
