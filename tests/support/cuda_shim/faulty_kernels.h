// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels with one fault each, which memory_checks.h has to find.

#include "support/cuda_shim/cuda_runtime_api.h"

namespace tessera::tests::cuda_shim {

enum class Fault {
  kNone,
  kReadsPastTheEnd,
  kReadsBeforeTheBegin,
  kWritesPastTheEnd,
  kPackEndsPastTheEnd, ///< a load of 16 bytes of a buffer of 8
  kReadsSharedUnwritten, ///< what a block of kNone has left there
  kSharedWithoutBarrier, ///< between writes and reads of other threads
  kSharedOverwritten, ///< no barrier between reads and the next writes
  kWritesOfTwoThreads, ///< to a global output
  kWritesOfTwoBlocks,
  kReadsOfAnotherBlock, ///< what that one writes
  kPartOfTheBlockAtBarrier,
};

/// Sums of 64 numbers of `in` by each of 2 blocks of 64 threads.
/// @param in [128], 16-byte aligned. @param out [2]
cudaError_t launch_faulty(Fault fault, const float* in, float* out);

} // namespace tessera::tests::cuda_shim
