// SPDX-License-Identifier: Apache-2.0
#pragma once
// `run_kernel()` runs a CUDA kernel that was compiled as C++: its blocks one
// after the other, and the threads of a block as coroutines.

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tessera::tests::cuda_shim {

/// CUDA's type of this name.
struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;

  // NOLINTNEXTLINE(google-explicit-constructor): as CUDA's.
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
      : x(x_), y(y_), z(z_) {}
};

/// Place of the thread that runs, in its launch.
struct Kernel {
  dim3 grid;
  dim3 threads;
  dim3 block{0, 0, 0};
  dim3 thread{0, 0, 0};
};
inline constinit Kernel kernel;

/// How kernels run; tests change it.
struct KernelOptions {
  /// Multiprocessors that the device says it has: few, so that loops over the
  /// grid have several turns.
  int processors = 1;
  /// Which blocks of a launch run; all if it is empty.
  std::function<bool(const dim3& block)> runs_block;
  /// Number of the launch that fails, from 1; 0: none.
  int failing_launch = 0;
  /// Launches so far.
  int launches = 0;
  /// What the question for the device returns.
  int device_query = 0;
};
KernelOptions& kernel_options();

/// Sets options back on destruction.
class OptionsScope {
 public:
  OptionsScope() : before_(kernel_options()) {
    kernel_options() = {};
  }
  ~OptionsScope() {
    kernel_options() = before_;
  }
  OptionsScope(const OptionsScope&) = delete;
  OptionsScope& operator=(const OptionsScope&) = delete;

 private:
  KernelOptions before_;
};

/// The seed of the order in which blocks and threads run: TESSERA_SHIM_SEED in
/// the environment, else another one in each process. Printed once.
uint64_t process_seed();

/// Calls `body` once per thread; its place is in `kernel`. Blocks run in a
/// random order, and so do the threads of a block, anew after each barrier and
/// exchange of a warp.
/// What they access is checked (memory_checks.h).
/// @param parameter_bytes size of the kernel's arguments.
/// @return an error where CUDA would refuse the launch: more than 1024 threads
///   a block, 2^31 - 1 x 65535 blocks or 4 KiB of arguments, or none of these.
///   Aborts when a barrier is not reached by all threads of a block, or an
///   exchange not by all threads of the warp that it names.
int run_kernel(
    const dim3& grid,
    const dim3& threads,
    size_t parameter_bytes,
    const std::function<void()>& body);

/// __syncthreads().
void wait_for_block();

/// __shfl_xor_sync() of 32 bits: waits for the threads of the warp in `mask`,
/// which name the same ones.
/// @return what lane `lane ^ lane_mask` gave.
uint32_t exchange_in_warp(unsigned mask, uint32_t value, unsigned lane_mask);

/// Returns the error of the latest launch and clears it.
int last_error();

} // namespace tessera::tests::cuda_shim
