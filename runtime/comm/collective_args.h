// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CollectiveArgs` checks the arguments of collectives and divides tensors into
// the parts of ranks, for the c10d backends of this room.

#include "tessera/runtime/comm/byte_span.h"
#include "tessera/runtime/comm/shm_reduce.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// The arguments of one backend's collectives: contiguous tensors on one
/// device. All functions throw tessera::Error where these do not fit.
class CollectiveArgs {
 public:
  /// @param transport names the backend in errors, e.g. "shared memory".
  CollectiveArgs(std::string transport, at::Device device, int ranks)
      : transport_(std::move(transport)), device_(device), ranks_(ranks) {}

  void check(const at::Tensor& tensor, const char* collective) const;
  /// The only one of the tensors.
  const at::Tensor& only(
      const std::vector<at::Tensor>& tensors,
      const char* collective) const;
  /// Checks that `full` has the size of one `part` per rank.
  void check_parts(
      const char* collective,
      const at::Tensor& full,
      const at::Tensor& part) const;
  ReduceKind kind_of(const c10d::ReduceOp& op) const;

  /// The spans of an all-to-all.
  struct Blocks {
    std::vector<ByteSpan> out; ///< of the output, by sending rank
    std::vector<ByteSpan> in; ///< of the input, by receiving rank
  };
  /// @param output_splits, input_splits numbers of rows of the first dimension,
  ///   by rank; both empty if all have the same.
  Blocks blocks(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<int64_t>& output_splits,
      const std::vector<int64_t>& input_splits) const;

  /// One span of `bytes` bytes per rank, in order.
  std::vector<ByteSpan> equal_spans(int64_t bytes) const;

 private:
  std::vector<ByteSpan> row_spans(
      const at::Tensor& tensor,
      const std::vector<int64_t>& rows) const;

  std::string transport_;
  at::Device device_;
  int ranks_;
};

inline int64_t bytes_in(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

} // namespace tessera::runtime
