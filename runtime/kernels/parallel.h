// SPDX-License-Identifier: Apache-2.0
#pragma once
// LibTorch's intra-op threads, for code that is compiled without OpenMP.

#include <cstdint>
#include <functional>

namespace tessera {

/// Calls body on parts of [begin, end) that cover it, at least `grain` long
/// but for the last, on at most at::get_num_threads() threads; blocks. The
/// first exception of body is thrown again.
/// Use this and not at::parallel_for: that is a template, and where the
/// including file is compiled without OpenMP it runs everything on the calling
/// thread.
void parallel_for(
    int64_t begin,
    int64_t end,
    int64_t grain,
    const std::function<void(int64_t begin, int64_t end)>& body);

} // namespace tessera
