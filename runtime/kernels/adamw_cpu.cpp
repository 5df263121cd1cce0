// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/adamw_cpu.h"

#include "tessera/runtime/kernels/adamw_kernel.h"
#include "tessera/runtime/kernels/libtorch_sqrt.h"

#include <algorithm>
#include <memory>
#include <type_traits>

namespace tessera {

namespace {

template <typename T>
AdamWKernel<T> kernel_of(Isa isa) {
  check_isa(isa);
  if constexpr (std::is_same_v<T, double>) {
    return adamw_portable_double();
  } else {
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
}

/// The update with roots computed outside the kernel, in chunks small enough
/// that the data of the first half is still in the cache for the second.
template <typename T>
bool update_with_roots(
    const AdamWKernel<T>& kernel,
    const LibTorchSqrt<T>& sqrt,
    const AdamWShard<T>& shard,
    int64_t begin,
    int64_t end) {
  const auto roots = std::make_unique_for_overwrite<T[]>(sqrt.chunk_numel);
  const T* squares = static_cast<const T*>(shard.moment_sq);
  bool finite = true;
  for (int64_t i = begin; i < end; i += sqrt.chunk_numel) {
    const int64_t stop = std::min(i + sqrt.chunk_numel, end);
    finite &= kernel.moments(shard, i, stop);
    sqrt.compute(stop - i, squares + i, roots.get());
    kernel.weights(shard, roots.get(), i, stop);
  }
  return finite;
}

template <typename T>
CpuUpdate update_of(
    Isa isa,
    const AdamWShard<T>& shard,
    SqrtRounding rounding) {
  const AdamWKernel<T> kernel = kernel_of<T>(isa);
  if (rounding == SqrtRounding::kLibTorch &&
      shard.moment_format == LowPrecision::kNone) {
    const LibTorchSqrt<T>& sqrt = libtorch_sqrt<T>();
    if (sqrt.compute != nullptr) {
      return {shard.numel, [=](int64_t begin, int64_t end) {
                return update_with_roots(kernel, sqrt, shard, begin, end);
              }};
    }
  }
  return {shard.numel, [=](int64_t begin, int64_t end) {
            return kernel.step(shard, begin, end);
          }};
}

} // namespace

CpuUpdate adamw_update(
    Isa isa,
    const AdamWShard<float>& shard,
    SqrtRounding rounding) {
  return update_of(isa, shard, rounding);
}

CpuUpdate adamw_update(
    Isa isa,
    const AdamWShard<double>& shard,
    SqrtRounding rounding) {
  return update_of(isa, shard, rounding);
}

} // namespace tessera
