// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelParts` connects the ranks that have different parts of a model while it
// is written to or read from files.

#include "tessera/runtime/comm/communicator.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::engine {

/// The parts of a model that no rank has together: its pipeline stages, or the
/// experts of all ranks that divide them in all pipeline stages. Several ranks
/// have each part.
class ModelParts {
 public:
  /// @param ranks the ranks that are in the same place of their part, in the
  ///   order of the parts, for tensors on the CPU; null: there is one part.
  /// @param is_first whether this rank is the first of its part.
  ModelParts(std::unique_ptr<Communicator> ranks, bool is_first);

  /// Which part this rank has.
  int own() const {
    return ranks_ ? ranks_->rank() : 0;
  }
  int count() const {
    return ranks_ ? ranks_->size() : 1;
  }
  /// True on one rank of each part.
  bool is_first() const {
    return is_first_;
  }
  /// Null if there is one part.
  Communicator* ranks() const {
    return count() > 1 ? ranks_.get() : nullptr;
  }

  /// Returns the texts of all parts; each must be the same on all ranks of its
  /// part. Collective; blocks.
  std::vector<std::string> texts(
      const std::string& text,
      const WaitCheck& check);
  /// On the first rank of every part, broadcasts the `value` of part `root`;
  /// does nothing on other ranks. Collective over the first ranks; blocks.
  /// @param value contiguous, on the CPU.
  void broadcast(int root, const at::Tensor& value, const WaitCheck& check);

 private:
  std::unique_ptr<Communicator> ranks_;
  bool is_first_;
};

} // namespace tessera::engine
