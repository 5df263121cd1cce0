// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/isa.h"

#include "tessera/runtime/core/error.h"

namespace tessera::runtime {

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

void check_isa(Isa isa) {
  TESSERA_CHECK(
      isa_available(isa),
      "CPU kernels: instruction set {} is not available on this processor; use best_isa()",
      static_cast<int>(isa));
}

} // namespace tessera::runtime
