// SPDX-License-Identifier: Apache-2.0
#include "adamw_ceiling.h"

namespace tessera {

namespace {

constexpr int64_t kLine = 16; // floats in a cache line
constexpr int64_t kAhead = 256;

} // namespace

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
void adamw_ceiling(
    float* __restrict master,
    const float* __restrict grad,
    float* __restrict exp_avg,
    float* __restrict exp_avg_sq,
    int64_t numel) {
  for (int64_t line = 0; line + kLine <= numel; line += kLine) {
    __builtin_prefetch(master + line + kAhead);
    __builtin_prefetch(grad + line + kAhead);
    __builtin_prefetch(exp_avg + line + kAhead);
    __builtin_prefetch(exp_avg_sq + line + kAhead);
#pragma GCC unroll 1
    for (int64_t i = line; i < line + kLine; ++i) {
      exp_avg[i] = 0.5f * exp_avg[i] + 0.5f * grad[i];
      exp_avg_sq[i] = 0.5f * exp_avg_sq[i] + 0.5f * grad[i];
      master[i] = 0.5f * master[i] + 0.5f * exp_avg[i];
    }
  }
}

} // namespace tessera
