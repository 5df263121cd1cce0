// SPDX-License-Identifier: Apache-2.0
#include "bench/memory_kernels.h"

#include <cstring>

// One version per instruction set, chosen when the program is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TESSERA_WIDEST \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TESSERA_WIDEST
#endif

namespace tessera::tools {

TESSERA_WIDEST
uint64_t read_memory(const float* a, size_t count) {
  // Integer sums may be reordered, and therefore vectorized.
  uint32_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, a + i, sizeof(bits));
    sum += bits;
  }
  return sum;
}

TESSERA_WIDEST
void write_memory(float* a, float value, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    a[i] = value;
  }
}

TESSERA_WIDEST
void triad_memory(
    float* __restrict a,
    const float* __restrict b,
    const float* __restrict c,
    size_t count) {
  for (size_t i = 0; i < count; ++i) {
    a[i] = b[i] + 3 * c[i];
  }
}

TESSERA_WIDEST
void update_memory(
    float* __restrict w,
    float* __restrict m,
    float* __restrict v,
    const float* __restrict g,
    size_t count) {
  for (size_t i = 0; i < count; ++i) {
    m[i] = 0.9F * m[i] + 0.1F * g[i];
    v[i] = 0.99F * v[i] + 0.01F * g[i] * g[i];
    w[i] -= 1e-3F * m[i] * v[i];
  }
}

} // namespace tessera::tools
