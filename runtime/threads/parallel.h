// SPDX-License-Identifier: Apache-2.0
#pragma once
// `parallel_for()` runs loops on LibTorch's intra-op threads, for code that is
// compiled without OpenMP.

#include <cstdint>
#include <functional>

namespace tessera::runtime {

/// Calls body on ranges that cover [begin, end), on at most
/// at::get_num_threads() threads and at most one per `grain` elements (rounded
/// up). Blocks. Rethrows the first exception of body.
///
/// Use it instead of at::parallel_for, a template that runs everything on the
/// calling thread if the including file is compiled without OpenMP.
void parallel_for(
    int64_t begin,
    int64_t end,
    int64_t grain,
    const std::function<void(int64_t begin, int64_t end)>& body);

} // namespace tessera::runtime
