// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_cpu.h"

#include <algorithm>
#include <vector>

namespace tessera::runtime {

template <>
UpdateKernels<float> update_kernels(Isa isa) {
  check_isa(isa);
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

template <>
UpdateKernels<double> update_kernels(Isa isa) {
  check_isa(isa);
  return update_kernels_portable_double();
}

namespace {

// LAMB sums blocks of this many elements, for any number of threads.
constexpr int64_t kBlockNumel = 1024;
static_assert(kUpdateChunk % kBlockNumel == 0);

template <typename T>
LambSums lamb_moments(Isa isa, const LambShard<T>& shard) {
  const UpdateKernels<T> kernels = update_kernels<T>(isa);
  std::vector<LambSums> parts(
      static_cast<size_t>((shard.numel + kBlockNumel - 1) / kBlockNumel));
  const bool finite = run_cpu_updates(
      {{shard.numel, [&](int64_t begin, int64_t end) {
          bool all = true;
          for (int64_t at = begin; at < end; at += kBlockNumel) {
            LambSums& part = parts[static_cast<size_t>(at / kBlockNumel)];
            part = kernels.lamb_moments(
                shard, at, std::min(at + kBlockNumel, end));
            all &= part.grads_finite;
          }
          return all;
        }}});
  LambSums sums;
  for (const LambSums& part : parts) {
    sums.weights += part.weights;
    sums.direction += part.direction;
  }
  sums.grads_finite = finite;
  return sums;
}

template <typename T>
void lamb_weights(Isa isa, const LambShard<T>& shard) {
  const UpdateKernels<T> kernels = update_kernels<T>(isa);
  run_cpu_updates({{shard.numel, [&](int64_t begin, int64_t end) {
                      kernels.lamb_weights(shard, begin, end);
                      return true;
                    }}});
}

} // namespace

LambSums lamb_moments_cpu(Isa isa, const LambShard<float>& shard) {
  return lamb_moments(isa, shard);
}

LambSums lamb_moments_cpu(Isa isa, const LambShard<double>& shard) {
  return lamb_moments(isa, shard);
}

void lamb_weights_cpu(Isa isa, const LambShard<float>& shard) {
  lamb_weights(isa, shard);
}

void lamb_weights_cpu(Isa isa, const LambShard<double>& shard) {
  lamb_weights(isa, shard);
}

void widen_cpu(
    Isa isa,
    const uint16_t* bits,
    LowPrecision format,
    int64_t count,
    float* values) {
  update_kernels<float>(isa).widen(bits, format, count, values);
}

} // namespace tessera::runtime
