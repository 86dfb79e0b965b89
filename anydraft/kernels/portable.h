/* Plain C, one output at a time, for processors without a kernel of their own. */

static void portable_pack_floats(const linear_job *job, int64_t m0, int64_t rows) {
    for (int64_t m = 0; m < rows; m++)
        for (int64_t s = 0; s < job->stride; s += 16) {
            float *x = (float *)job->x + m0 * job->stride + s * rows + m * 16;
            for (int64_t i = 0; i < 16; i++)
                x[i % 2 * 8 + i / 2] = s + i < job->w->k ? source_value(job, m0 + m, s + i) : 0;
        }
}

static void portable_pack_integers(const linear_job *job, int64_t m0, int64_t rows) {
    const int64_t steps = job->stride / 64;
    if (job->x_sum) memset(job->x_sum + m0 * job->groups, 0, (size_t)(rows * job->groups) * sizeof(float));
    for (int64_t m = 0; m < rows; m++)
        for (int64_t s = 0; s < steps; s++) {
            float value[64], to_integer;
            int32_t highest = 0, sum[2] = {0, 0};
            for (int64_t i = 0; i < 64; i++) {
                int32_t bits;
                value[i] = 64 * s + i < job->w->k ? source_value(job, m0 + m, 64 * s + i) : 0;
                memcpy(&bits, value + i, sizeof bits);
                bits &= 0x7fffffff; /* ordered like the magnitudes, NaN above infinity */
                if (bits > highest) highest = bits;
            }
            const float scale = group_scale(highest, &to_integer);
            int16_t *x = (int16_t *)job->x + m0 * job->stride + 64 * (s * rows + m);
            for (int i = 0; i < 64; i++) {
                x[i] = to_integer == 0 ? 0 : (int16_t)lrintf(value[i] * to_integer);
                sum[i / 32] += x[i];
            }
            job->x_scale[m0 * steps + s * rows + m] = scale;
            for (int64_t g = 2 * s; job->x_sum && g < 2 * s + 2; g++)
                job->x_sum[m0 * job->groups + (g / 8 * rows + m) * 8 + g % 8] = (float)sum[g % 2] * scale;
        }
}

static float portable_sum(const float v[8]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

static float half_to_float(uint16_t half) {
    const uint32_t exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
    float value;
    if (exponent == 0) value = (float)mantissa * 0x1p-24f;
    else {
        const uint32_t bits = (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
        memcpy(&value, &bits, sizeof value);
    }
    return half & 0x8000u ? -value : value;
}

static void portable_bf16(const linear_job *job, int64_t n, int64_t m, const char *ahead, int interval) {
    const int64_t k = job->w->k;
    const uint16_t *w = (const uint16_t *)job->w->weight + n * k;
    const float *x = (const float *)job->x + m * job->stride;
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
    const int64_t k = job->stride, steps = k / 64;
    const int8_t *w = (const int8_t *)job->w->weight + n * k;
    const int16_t *x = (const int16_t *)job->x + m * k;
    float sum = 0;
    (void)ahead, (void)interval;
    for (int64_t s = 0; s < steps; s++) {
        int32_t dot = 0;
        for (int i = 0; i < 64; i++) dot += (int32_t)w[64 * s + i] * x[64 * s + i];
        sum += (float)dot * job->x_scale[m * steps + s];
    }
    store_output(job, m, n, sum * ((const float *)job->w->scale)[n]);
}

static void portable_int4(const linear_job *job, int64_t n, int64_t m, const char *ahead, int interval) {
    const int64_t k = job->stride, groups = job->groups;
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

static const kernel PORTABLE[3] = {
    {portable_pack_floats, 16, 4, 1, 1, {{0, 0, 0}, {1, portable_bf16, portable_bf16}}},
    {portable_pack_integers, 64, 2, 1, 1, {{0, 0, 0}, {1, portable_int8, portable_int8}}},
    {portable_pack_integers, 64, 2, 1, 1, {{0, 0, 0}, {1, portable_int4, portable_int4}}},
};
