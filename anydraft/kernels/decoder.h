/* The layout that anydraft/kernels/decoder.py fills in; see decoder.c. */
#ifndef ANYDRAFT_DECODER_H
#define ANYDRAFT_DECODER_H
#include <stdint.h>

#include "linear.h"

enum { ACTIVATION_SILU = 0, ACTIVATION_GELU_TANH = 1 };

typedef struct {
    linear_weight q, k, v, o, gate, up, down;
    /* float32; optional ones are NULL. Offsets (Gemma's 1 + w) are added already. */
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm, *post_attention_norm, *post_mlp_norm;
    const float *cosine, *sine; /* [positions, head_dim / 2] */
    int64_t window;             /* 0: sees everything before it */
    uint16_t *keys, *values;    /* bf16 [rows, kv_heads, slots, head_dim] */
} decoder_layer;

typedef struct {
    int64_t num_layers, hidden, heads, kv_heads, head_dim, mlp, slots, activation;
    float eps, attention_scale, embedding_scale;
    decoder_layer *layers;
    const uint16_t *embedding; /* bf16 [ids, hidden] */
    linear_weight head;
    const float *final_norm;
} decoder;

/* n tokens of any rows. Token t is written to slot slots[t] of row rows[t] and sees the row's first contexts[t]
 * slots and the branch_counts[t] slots of branches[t * branch_width..] (its own among one of them). */
typedef struct {
    int64_t n, branch_width;
    const int64_t *ids, *rows, *positions, *slots, *contexts;
    const int32_t *branches, *branch_counts; /* NULL where there is no tree */
    const int64_t *wanted;                   /* indices of the tokens whose logits are wanted */
    int64_t num_wanted;
} decoder_batch;

/* What the parts of a pass share. */
typedef struct {
    const decoder *model;
    const decoder_layer *layer;
    const decoder_batch *batch;
    float *x, *normed, *q, *k, *v, *attended, *projected, *gate, *up;
    float *scores; /* a strip of `strip` floats for each thread */
    int64_t strip;
    atomic_int_fast64_t next, next_strip;
} decoder_pass;

int decoder_run_layer_portable(decoder_pass *pass, const decoder_layer *layer, int threads);
int decoder_run_layer_avx2(decoder_pass *pass, const decoder_layer *layer, int threads);

#endif
