/* One output at a time in plain C, for processors without a kernel of their own. */

static float portable_sum(const float v[8]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

static float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u;
    const uint32_t mantissa = half & 0x3ffu;
    uint32_t bits = sign | (exponent + 112) << 23 | mantissa << 13;
    float value;
    if (exponent == 31) bits = sign | 0x7f800000u | mantissa << 13;
    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void portable_bf16(const linear_job *job, int64_t n, int64_t m, const char *ahead, int interval) {
    const int64_t k = job->w->k;
    const uint16_t *w = (const uint16_t *)job->w->weight + n * k;
    const float *x = (const float *)job->x + m * job->x_stride;
    float sum[8] = {0};
    (void)ahead, (void)interval;
    for (int64_t s = 0; s < k / 16 * 16; s += 16)
        for (int i = 0; i < 8; i++)
            sum[i] += bf16_to_float(w[s + 2 * i]) * x[s + i] + bf16_to_float(w[s + 2 * i + 1]) * x[s + 8 + i];
    for (int64_t s = k / 16 * 16, i = 0; s + i < k; i++)
        sum[i / 2] += bf16_to_float(w[s + i]) * x[s + i % 2 * 8 + i / 2];
    store_output(job, m, n, portable_sum(sum));
}

static void portable_int8(const linear_job *job, int64_t n, int64_t m, const char *ahead, int interval) {
    const int64_t k = job->w->k_padded, groups = k / 64;
    const int8_t *w = (const int8_t *)job->w->weight + n * k;
    const int16_t *x = (const int16_t *)job->x + m * k;
    float sum = 0;
    (void)ahead, (void)interval;
    for (int64_t g = 0; g < groups; g++) {
        int32_t dot = 0;
        for (int i = 0; i < 64; i++) dot += (int32_t)w[64 * g + i] * x[64 * g + i];
        sum += (float)dot * job->x_scale[m * groups + g];
    }
    store_output(job, m, n, sum * ((const float *)job->w->scale)[n]);
}

static void portable_int4(const linear_job *job, int64_t n, int64_t m, const char *ahead, int interval) {
    const int64_t k = job->w->k_padded, groups = job->groups;
    const uint8_t *w = (const uint8_t *)job->w->weight + n * (k / 2);
    const uint16_t *scale = (const uint16_t *)job->w->scale + n * groups;
    const uint16_t *minimum = (const uint16_t *)job->w->minimum + n * groups;
    const int16_t *x = (const int16_t *)job->x + m * k;
    float sum = 0;
    (void)ahead, (void)interval;
    for (int64_t g = 0; g < k / 32; g++) {
        int32_t dot = 0;
        for (int i = 0; i < 16; i++) {
            dot += (w[16 * g + i] & 15) * x[32 * g + i];
            dot += (w[16 * g + i] >> 4) * x[32 * g + 16 + i];
        }
        sum += (float)dot * half_to_float(scale[g]) * job->x_scale[m * (k / 64) + g / 2];
        sum += half_to_float(minimum[g]) * job->x_sum[m * groups + g];
    }
    store_output(job, m, n, sum);
}

static const tile_set PORTABLE_TILES[3] = {
    {1, 1, {{0, 0, 0}, {1, portable_bf16, portable_bf16}}},
    {1, 1, {{0, 0, 0}, {1, portable_int8, portable_int8}}},
    {1, 1, {{0, 0, 0}, {1, portable_int4, portable_int4}}},
};
