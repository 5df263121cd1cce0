// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_cpu.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/parallel.h"
#include "tessera/runtime/kernels/update_kernel.h"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace tessera {

namespace {

// As in adamw_cpu.cpp.
constexpr int64_t kBlockNumel = 1024;
constexpr int64_t kGrainBlocks = 32;

template <typename T>
UpdateKernels<T> kernels_of(Isa isa) {
  TESSERA_CHECK(
      isa_available(isa),
      "update_cpu: instruction set ",
      static_cast<int>(isa),
      " is not available on this processor; use best_isa()");
  if constexpr (std::is_same_v<T, double>) {
    return update_kernels_portable_double();
  } else {
#if defined(__x86_64__)
    if (isa == Isa::kAvx512) {
      return update_kernels_avx512();
    }
    if (isa == Isa::kAvx2) {
      return update_kernels_avx2();
    }
#endif
    return update_kernels_portable_float();
  }
}

template <typename Shard>
void update(void (*kernel)(const Shard&, int64_t, int64_t), const Shard& s) {
  const int64_t blocks = (s.numel + kBlockNumel - 1) / kBlockNumel;
  parallel_for(0, blocks, kGrainBlocks, [&](int64_t first, int64_t last) {
    kernel(s, first * kBlockNumel, std::min(last * kBlockNumel, s.numel));
  });
}

template <typename T>
LambSums lamb_moments(const UpdateKernels<T>& kernels, const LambShard<T>& s) {
  const int64_t blocks = (s.numel + kBlockNumel - 1) / kBlockNumel;
  // One by one: the sum's order does not depend on the threads.
  std::vector<LambSums> parts(static_cast<size_t>(blocks));
  parallel_for(0, blocks, kGrainBlocks, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      parts[static_cast<size_t>(b)] = kernels.lamb_moments(
          s, b * kBlockNumel, std::min((b + 1) * kBlockNumel, s.numel));
    }
  });
  LambSums sums;
  for (const LambSums& part : parts) {
    sums.weights += part.weights;
    sums.direction += part.direction;
  }
  return sums;
}

} // namespace

LambSums lamb_moments_cpu(Isa isa, const LambShard<float>& shard) {
  return lamb_moments(kernels_of<float>(isa), shard);
}

LambSums lamb_moments_cpu(Isa isa, const LambShard<double>& shard) {
  return lamb_moments(kernels_of<double>(isa), shard);
}

void lamb_weights_cpu(Isa isa, const LambShard<float>& shard) {
  update(kernels_of<float>(isa).lamb_weights, shard);
}

void lamb_weights_cpu(Isa isa, const LambShard<double>& shard) {
  update(kernels_of<double>(isa).lamb_weights, shard);
}

void update_cpu(Isa isa, const SgdShard<float>& shard) {
  update(kernels_of<float>(isa).sgd, shard);
}

void update_cpu(Isa isa, const SgdShard<double>& shard) {
  update(kernels_of<double>(isa).sgd, shard);
}

void update_cpu(Isa isa, const LionShard<float>& shard) {
  update(kernels_of<float>(isa).lion, shard);
}

void update_cpu(Isa isa, const LionShard<double>& shard) {
  update(kernels_of<double>(isa).lion, shard);
}

} // namespace tessera
