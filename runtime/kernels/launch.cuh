// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch()` launches a kernel by a function call: <<<>>> is not C++, and tests
// compile the kernels as C++ too (tests/support/cuda_shim).

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace tessera::runtime {

namespace {

/// A power of two, at least a warp: a thread for each of `work`, at most
/// `most`, a power of two too.
inline int threads_for(int64_t work, int most) {
  int threads = 32;
  while (threads < most && threads < work) {
    threads *= 2;
  }
  return threads;
}

/// Launches `kernel` on `grid` blocks of `threads` threads; does not
/// synchronize.
/// @return the error of the launch, which is thereby cleared.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(
    void (*kernel)(Parameters...),
    dim3 grid,
    int threads,
    cudaStream_t stream,
    Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  (void)cudaLaunchKernelEx(
      &config, kernel, std::forward<Arguments>(arguments)...);
  return cudaGetLastError();
}

} // namespace

} // namespace tessera::runtime
