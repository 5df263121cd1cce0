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
  kPartOfTheWarpInExchange, ///< the other threads wait at a barrier
  kExitBeforeExchange,
  kExchangeByOtherMask,
  kExchangeWithoutItself, ///< the mask does not name the thread
  kExchangeWithLaneOutOfMask,
  kExchangePastTheBlock, ///< the mask names threads that the block lacks
  kSharedOrderedByExchange, ///< which orders no memory
};

/// Sums of 64 numbers of `in` by each of 2 blocks of 64 threads.
/// @param in [128], 16-byte aligned. @param out [2]
cudaError_t launch_faulty(Fault fault, const float* in, float* out);

/// out[i]: what thread i receives in a block of 48 threads that exchange their
/// numbers, 1 + i: those of even lanes with the lane two further, the others
/// with the one six further, by masks of their own.
cudaError_t launch_exchange(float* out);

} // namespace tessera::tests::cuda_shim
