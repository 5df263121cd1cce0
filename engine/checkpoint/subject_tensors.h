// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensors of this rank that belong in a checkpoint.

#include "tessera/engine/checkpoint/checkpoint.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A stretch of a parameter, or of a state that has its shape.
struct SubjectPiece {
  std::string parameter;
  std::string state;
  int64_t offset = 0; ///< in the parameter's memory
  at::Tensor values; ///< [n], the engine's own: writing to it loads it
};

/// A tensor that belongs to a parameter and is the same on all ranks.
struct SubjectWhole {
  std::string parameter;
  std::string state;
  at::Tensor values;
};

/// What only the same rank of the same layout understands.
struct SubjectOpaque {
  std::string name;
  std::function<at::Tensor()> save;
  std::function<void(const at::Tensor&)> load;
};

struct SubjectTensors {
  std::vector<SubjectPiece> pieces;
  std::vector<SubjectWhole> wholes;
  std::vector<SubjectOpaque> opaques;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
};

SubjectTensors tensors_of(const CheckpointSubject& subject);

/// Calls `work`; when it throws on some rank, every rank throws. Collective.
/// @param what heads the error on the ranks where `work` did not throw.
void on_all_ranks(
    Pager& pager,
    const std::string& what,
    const std::function<void()>& work);

} // namespace tessera
