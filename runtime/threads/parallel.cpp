// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/threads/parallel.h"

#include <ATen/Parallel.h>

#ifndef INTRA_OP_PARALLEL
#error "compile this file with OpenMP: at::parallel_for is serial without it"
#endif

namespace tessera::runtime {

void parallel_for(
    int64_t begin,
    int64_t end,
    int64_t grain,
    const std::function<void(int64_t begin, int64_t end)>& body) {
  at::parallel_for(begin, end, grain, body);
}

} // namespace tessera::runtime
