// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/adamw_cpu.h"

#include <type_traits>

namespace tessera::runtime {

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

template <typename T>
CpuUpdate update_of(Isa isa, const AdamWShard<T>& shard) {
  const AdamWKernel<T> kernel = kernel_of<T>(isa);
  return {shard.numel, [=](int64_t begin, int64_t end) {
            return kernel(shard, begin, end);
          }};
}

} // namespace

CpuUpdate adamw_update(Isa isa, const AdamWShard<float>& shard) {
  return update_of(isa, shard);
}

CpuUpdate adamw_update(Isa isa, const AdamWShard<double>& shard) {
  return update_of(isa, shard);
}

} // namespace tessera::runtime
