// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows of matrices between the ranks of a tensor-parallel group, in pieces.

#include "tessera/runtime/comm/lane_collective.h"
#include "tessera/sharding/parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera {

/// Rows [begin, end) of the whole.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;

  at::Tensor of(const at::Tensor& whole) const {
    return whole.narrow(0, begin, end - begin);
  }
};

/// Activations of one border of a divided layer as matrices, a row for every
/// token, whatever their features: the part that a rank has between layers, and
/// the whole, in which the ranks' parts follow each other. Without sequence
/// parallelism the part is the whole.
///
/// Pieces that are sent are rows of the part, and of the whole the same rows of
/// all ranks. All collectives are issued by the ranks in the order of the
/// calls.
class RowExchange {
 public:
  /// @param between any activation between layers, [..., features].
  RowExchange(const at::Tensor& between, const TensorParallel& how);

  /// @param whole any activation inside of a layer, [..., features].
  /// @throws tessera::Error naming `function` when its sequences are to be
  ///     divided and cannot be.
  static RowExchange of_whole(
      const at::Tensor& whole,
      const TensorParallel& how,
      const char* function);

  int64_t whole_rows() const {
    return parts_ * rows_;
  }

  /// Activations to contiguous matrices, [rows, features].
  at::Tensor rows_of_part(const at::Tensor& between) const;
  at::Tensor rows_of_whole(const at::Tensor& whole) const;

  /// ... and back. The part is contiguous; the whole may be strided.
  at::Tensor part_shaped(const at::Tensor& matrix) const;
  at::Tensor whole_shaped(const at::Tensor& matrix) const;

  /// The whole of what is under way.
  class Gathered {
   public:
    /// Blocks until it is there; see LaneCollective::wait().
    at::Tensor wait();

   private:
    friend class RowExchange;
    LaneCollective collective_;
    at::Tensor whole_;
  };

  /// Starts a gather of all ranks' parts.
  Gathered gather(const at::Tensor& own) const;

  /// Gathers piece by piece: while `use` works on one, the next one travels.
  /// @param use given rows, and what the whole has there.
  void gather_pieces(
      const at::Tensor& own,
      const std::function<void(const Rows&, const at::Tensor&)>& use) const;

  /// A sum over the ranks that is under way, of this rank's rows.
  class Reduced {
   public:
    /// Blocks until it is there; see LaneCollective::wait().
    at::Tensor wait();

   private:
    friend class RowExchange;
    std::vector<LaneCollective> collectives_;
    at::Tensor own_;
  };

  /// Sums up over the ranks, piece by piece: while `make` works on one, the
  /// last one travels.
  /// @param make given rows, and where to write what this rank adds there.
  Reduced reduce_pieces(
      int64_t features,
      const at::Tensor& like,
      const std::function<void(const Rows&, at::Tensor&)>& make) const;

 private:
  RowExchange(
      const TensorParallel& how,
      std::vector<int64_t> part_sizes,
      int64_t dim);

  /// Rows of the part that travel together.
  std::vector<Rows> pieces() const;
  at::Tensor shaped(const at::Tensor& matrix, int64_t parts) const;
  std::string what(const char* step) const;

  Communicator* group_;
  int64_t piece_count_;
  bool is_divided_; ///< sequences are
  int64_t dim_; ///< of sequences, from the front
  std::vector<int64_t> part_sizes_; ///< without features, sequence first
  int64_t rows_; ///< of a part
  int64_t parts_; ///< in the whole
};

} // namespace tessera
