// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA devices of the machine, for tests that fork.

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::tests {

/// CUDA devices that the CUDA back end can use; 0 where it does not load. Asks
/// in a child process, once: a process that has asked itself can no longer fork
/// ranks that use CUDA. Processes forked afterwards know the answer.
int count_cuda_devices();

/// The first of them, in tests of GPUs in place of a literal CUDA device:
/// gpu_tests_on_vdev has the virtual device there. The back end must be loaded.
c10::Device cuda_device();

/// A size of a test: one for which a GPU has to do something several times, and
/// a small one for the virtual device, which computes on one thread.
int64_t gpu_size(int64_t on_cuda, int64_t on_vdev);

} // namespace tessera::tests
