// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RowExchange` gathers and reduces rows of matrices over a tensor-parallel
// group, in pieces.

#include "tessera/runtime/comm/lane_collective.h"
#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::sharding {

/// Rows [begin, end) of the whole.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;

  at::Tensor of(const at::Tensor& full) const {
    return full.narrow(0, begin, end - begin);
  }
};

/// Views the activations of one boundary of a partitioned layer as matrices
/// with one row per token: the part that a rank has between layers, and the
/// whole, the concatenation of all ranks' parts. The number of features may
/// vary. Without sequence parallelism the part is the whole.
///
/// A piece consists of rows of the part, and of the same rows of all ranks'
/// parts in the whole. All ranks must call these functions in the same order.
class RowExchange {
 public:
  /// @param between any activation between layers, [..., features].
  RowExchange(const at::Tensor& between, const TensorParallel& tp);

  /// @param whole any activation inside a layer, [..., features].
  /// @throws tessera::Error naming `function` when its sequences must be
  ///   sharded and cannot be.
  static RowExchange of_full(
      const at::Tensor& full,
      const TensorParallel& tp,
      const char* function);

  int64_t full_rows() const {
    return parts_ * rows_;
  }

  /// Reshape activations into contiguous matrices, [rows, features].
  at::Tensor rows_of_part(const at::Tensor& between) const;
  at::Tensor rows_of_full(const at::Tensor& full) const;

  /// Inverse of the above. The part is contiguous; the whole may be strided.
  at::Tensor part_shaped(const at::Tensor& matrix) const;
  at::Tensor full_shaped(const at::Tensor& matrix) const;

  /// Result of a gather in progress.
  class Gathered {
   public:
    /// Blocks until it is complete; see LaneCollective::wait().
    at::Tensor wait();

   private:
    friend class RowExchange;
    runtime::LaneCollective collective_;
    at::Tensor full_;
  };

  /// Starts a gather of all ranks' parts.
  Gathered gather(const at::Tensor& local) const;

  /// Gathers piece by piece: while `use` works on one piece, the next one is
  /// communicated.
  /// @param use takes the rows and their values in the whole.
  void gather_chunks(
      const at::Tensor& local,
      const std::function<void(const Rows&, const at::Tensor&)>& use) const;

  /// Sum over the ranks in progress, of this rank's rows.
  class Reduced {
   public:
    /// Blocks until it is complete; see LaneCollective::wait().
    at::Tensor wait();

   private:
    friend class RowExchange;
    std::vector<runtime::LaneCollective> collectives_;
    at::Tensor local_;
  };

  /// Sums over the ranks piece by piece: while `make` computes one piece, the
  /// previous one is communicated.
  /// @param make takes the rows and a tensor to which it writes this rank's
  ///   summand.
  Reduced reduce_chunks(
      int64_t features,
      const at::Tensor& like,
      const std::function<void(const Rows&, at::Tensor&)>& make) const;

 private:
  RowExchange(
      const TensorParallel& tp,
      std::vector<int64_t> part_sizes,
      int64_t dim);

  /// Returns the rows of the part that are communicated together.
  std::vector<Rows> chunks() const;
  at::Tensor shaped(const at::Tensor& matrix, int64_t parts) const;
  std::string label(const char* step) const;

  Communicator* group_;
  int64_t chunk_count_;
  bool is_divided_; ///< whether sequences are sharded
  int64_t dim_; ///< sequence dimension, counted from the start
  /// sizes of the part without features, sequence first
  std::vector<int64_t> part_sizes_;
  int64_t rows_; ///< number of rows of a part
  int64_t parts_; ///< number of parts in the whole
};

} // namespace tessera::sharding
