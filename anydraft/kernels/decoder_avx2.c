/* decoder_layer.h for AVX2; chosen at run time. */
#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma,f16c")
#define RUN_LAYER decoder_run_layer_avx2
#include "decoder_layer.h"
#endif
