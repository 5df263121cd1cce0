// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CompressedAverage` averages a flat tensor over ranks in one bit per element
// and remembers what was lost, on the sending and on the receiving side.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/kernels/block_format.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera::engine {

/// [Note: averages in one bit] With error feedback (arXiv:2102.02888, Section
/// 3): every rank adds its error to its values and sends signs, with a mean
/// magnitude per block of 2048 elements, of each part to the rank that averages
/// it; that rank adds its own error to the average, and sends signs and scales
/// of it to all. What the rounding of either side changes is its next error. A
/// rank sends 2/32 of the bytes that float32 values have, and 1/32 of what an
/// all-reduce of them sends; scales add 1/64 of that.
///
/// All ranks have the same bits of the result.
class CompressedAverage {
 public:
  /// @param numel of the values.
  CompressedAverage(int64_t numel, int ranks);

  /// Elements that the values have with the padding that divides them evenly.
  int64_t padded_numel() const {
    return ranks_ * part_numel_;
  }
  /// Elements of both errors: float32.
  int64_t error_numel() const {
    return padded_numel() + part_numel_;
  }
  /// Bytes of what is sent and of what arrives.
  int64_t wire_bytes() const;

  /// Allocates the errors, zeros. Call it once, before all functions below.
  void allocate(MemoryLedger& ledger, c10::Device device);

  /// Replaces the values by their average over the ranks. Collective. Blocks if
  /// they are on the CPU.
  /// @param values [padded_numel()] float32.
  /// @param used [padded_numel()] float32, the same on all ranks: 1 where
  ///   values count, 0 where they and the average are to be 0.
  /// @param wire [wire_bytes()] uint8, overwritten.
  /// @param label names it in errors.
  void run(
      const at::Tensor& values,
      const at::Tensor& used,
      const at::Tensor& wire,
      Communicator& communicator,
      const std::string& label,
      const WaitCheck& check);

  /// [error_numel()], to be saved.
  const at::Tensor& errors() const {
    return errors_;
  }

 private:
  int64_t ranks_;
  int64_t part_numel_;
  at::Tensor errors_;
};

} // namespace tessera::engine
