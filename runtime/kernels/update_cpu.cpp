// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_cpu.h"

#include "tessera/runtime/kernels/update_kernel.h"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace tessera::runtime {

namespace {

// LAMB sums blocks of this many elements, for any number of threads.
constexpr int64_t kBlockNumel = 1024;
static_assert(kUpdateChunk % kBlockNumel == 0);

template <typename T>
UpdateKernels<T> kernels_of(Isa isa) {
  check_isa(isa);
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
CpuUpdate bound(
    bool (*kernel)(const Shard&, int64_t, int64_t),
    const Shard& shard) {
  return {shard.numel, [=](int64_t begin, int64_t end) {
            return kernel(shard, begin, end);
          }};
}

template <typename T>
LambSums lamb_moments(Isa isa, const LambShard<T>& shard) {
  const UpdateKernels<T> kernels = kernels_of<T>(isa);
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
  const UpdateKernels<T> kernels = kernels_of<T>(isa);
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
  kernels_of<float>(isa).widen(bits, format, count, values);
}

CpuUpdate update_of(Isa isa, const SgdShard<float>& shard) {
  return bound(kernels_of<float>(isa).sgd, shard);
}

CpuUpdate update_of(Isa isa, const SgdShard<double>& shard) {
  return bound(kernels_of<double>(isa).sgd, shard);
}

CpuUpdate update_of(Isa isa, const LionShard<float>& shard) {
  return bound(kernels_of<float>(isa).lion, shard);
}

CpuUpdate update_of(Isa isa, const LionShard<double>& shard) {
  return bound(kernels_of<double>(isa).lion, shard);
}

CpuUpdate update_of(Isa isa, const AdanShard<float>& shard) {
  return bound(kernels_of<float>(isa).adan, shard);
}

CpuUpdate update_of(Isa isa, const AdanShard<double>& shard) {
  return bound(kernels_of<double>(isa).adan, shard);
}

} // namespace tessera::runtime
