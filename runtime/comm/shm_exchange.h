// SPDX-License-Identifier: Apache-2.0
#pragma once
// All-to-all: each rank shows another block to every peer.

#include "tessera/runtime/comm/shm_operation.h"

#include <vector>

namespace tessera {

/// Block r of `out` is filled with block `rank` of rank r's `in`.
///
/// A payload has a row for each peer: a line that says how long the block is
/// and where it lies in this process's memory, then a piece of the block. So a
/// peer need not know how the other blocks of this rank are cut.
class ShmExchange : public ShmOperation {
 public:
  struct Blocks {
    std::vector<ByteSpan> out; ///< of `out`, by the rank they come from
    std::vector<ByteSpan> in; ///< of `in`, by the rank they go to
    /// At least the longest block of any rank, the same on all ranks.
    int64_t longest_bytes = 0;
  };

  ShmExchange(
      const ShmPort& port,
      const at::Tensor& out,
      const at::Tensor& in,
      Blocks blocks);

  /// A longest_bytes with which blocks of all lengths are read from where they
  /// lie; for ranks that may read each other's memory.
  static int64_t always_direct(const ShmPort& port);

  void publish(const ShmPort& port, uint64_t turn, uint64_t piece) override;
  void consume(const ShmPort& port, uint64_t turn, uint64_t piece) override;

 private:
  struct Header;

  std::byte* row(const ShmPort& port, int from, int to, uint64_t turn) const;

  at::Tensor out_;
  at::Tensor in_;
  Blocks blocks_;
  int64_t row_bytes_;
};

} // namespace tessera
