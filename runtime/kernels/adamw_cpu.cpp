// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/adamw_cpu.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/adamw_kernel.h"
#include "tessera/runtime/kernels/libtorch_sqrt.h"
#include "tessera/runtime/kernels/parallel.h"

#include <algorithm>
#include <memory>

namespace tessera {

namespace {

// A thread's share begins at a multiple of this, so that an aligned shard
// stays aligned in every thread.
constexpr int64_t kBlockNumel = 1024;
// A share below this is not worth a thread's start: some 20 us of work.
constexpr int64_t kGrainBlocks = 32;

AdamWKernel<float> kernel_of(Isa isa) {
  TESSERA_CHECK(
      isa_available(isa),
      "adamw_cpu: instruction set ",
      static_cast<int>(isa),
      " is not available on this processor; use best_isa()");
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    return adamw_avx512();
  }
  if (isa == Isa::kAvx2) {
    return adamw_avx2();
  }
#endif
  return adamw_portable_float();
}

/// The update with roots from outside the kernel, in chunks so small that what
/// the first half has touched is still in the cache for the second.
template <typename T>
void update_with_roots(
    const AdamWKernel<T>& kernel,
    const LibTorchSqrt<T>& sqrt,
    const AdamWShard<T>& shard,
    int64_t begin,
    int64_t end) {
  const auto roots = std::make_unique_for_overwrite<T[]>(sqrt.chunk_numel);
  for (int64_t i = begin; i < end; i += sqrt.chunk_numel) {
    const int64_t stop = std::min(i + sqrt.chunk_numel, end);
    kernel.moments(shard, i, stop);
    sqrt.compute(stop - i, shard.exp_avg_sq + i, roots.get());
    kernel.weights(shard, roots.get(), i, stop);
  }
}

template <typename T>
void update(
    const AdamWKernel<T>& kernel,
    const AdamWShard<T>& shard,
    SqrtRounding rounding) {
  LibTorchSqrt<T> sqrt;
  if (rounding == SqrtRounding::kLibTorch) {
    sqrt = libtorch_sqrt<T>();
  }
  const int64_t blocks = (shard.numel + kBlockNumel - 1) / kBlockNumel;
  parallel_for(0, blocks, kGrainBlocks, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kBlockNumel;
    const int64_t end = std::min(last * kBlockNumel, shard.numel);
    if (sqrt.compute == nullptr) {
      kernel.step(shard, begin, end);
    } else {
      update_with_roots(kernel, sqrt, shard, begin, end);
    }
  });
}

} // namespace

bool isa_available(Isa isa) {
  if (isa == Isa::kPortable) {
    return true;
  }
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") &&
                    __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  return isa == Isa::kAvx2 ? avx2
                           : avx2 && __builtin_cpu_supports("avx512f") &&
                                 __builtin_cpu_supports("avx512vl") &&
                                 __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

Isa best_isa() {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (isa_available(isa)) {
      return isa;
    }
  }
  return Isa::kPortable;
}

void adamw_cpu(Isa isa, const AdamWShard<float>& shard, SqrtRounding rounding) {
  update(kernel_of(isa), shard, rounding);
}

void adamw_cpu(const AdamWShard<double>& shard, SqrtRounding rounding) {
  update(adamw_portable_double(), shard, rounding);
}

} // namespace tessera
