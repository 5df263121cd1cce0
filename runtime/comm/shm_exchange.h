// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShmExchange` is an all-to-all over shared memory.

#include "tessera/runtime/comm/shm_operation.h"

#include <vector>

namespace tessera::runtime {

/// Fills block r of `out` with block `rank` of rank r's `in`.
///
/// A payload has one row per peer: a header with the length of the block and
/// its address in this process, then a piece of the block. A peer thus does not
/// need the lengths of this rank's other blocks.
class ShmExchange : public ShmOperation {
 public:
  struct Blocks {
    std::vector<ByteSpan> out; ///< of `out`, by sending rank
    std::vector<ByteSpan> in; ///< of `in`, by receiving rank
    /// At least the longest block of any rank; the same on all ranks.
    int64_t longest_bytes = 0;
  };

  ShmExchange(
      const ShmPort& port,
      const at::Tensor& out,
      const at::Tensor& in,
      Blocks blocks);

  /// Value of longest_bytes with which blocks of any length are read directly
  /// from the sender's memory, for ranks that can read each other's memory.
  static int64_t always_direct(const ShmPort& port);

  void publish(const ShmPort& port, uint64_t turn, uint64_t chunk) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t chunk) override;

 private:
  struct Header;

  std::byte* row(const ShmPort& port, int from, int to, uint64_t turn) const;

  at::Tensor out_;
  at::Tensor in_;
  Blocks blocks_;
  int64_t row_bytes_;
};

} // namespace tessera::runtime
