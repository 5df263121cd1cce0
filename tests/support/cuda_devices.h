// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA devices of the machine, for tests that fork.

namespace tessera::tests {

/// CUDA devices that the CUDA back end can use; 0 where it does not load. Asks
/// in a child process, once: a process that has asked itself can no longer fork
/// ranks that use CUDA. Processes forked afterwards know the answer.
int count_cuda_devices();

} // namespace tessera::tests
