// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensors of this rank that belong in a checkpoint.

#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/engine/checkpoint/whole_model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// A flat tensor of the engine's, wherever it rests.
struct SubjectTensor {
  at::ScalarType dtype = at::kFloat;
  /// Its values in memory. Blocks.
  std::function<at::Tensor()> load;
  /// After what load() returned was written to. Blocks.
  std::function<void(const at::Tensor&)> store;
};

/// A stretch of a parameter, or of a state that has its shape.
struct SubjectPiece {
  std::string parameter; ///< its first name in the whole model
  std::string state;
  PartStretch stretch;
  size_t tensor = 0; ///< which of SubjectTensors::tensors it is part of
  int64_t tensor_offset = 0;
};

/// A tensor that belongs to a parameter and is the same on all ranks that have
/// the parameter.
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
  std::vector<SubjectTensor> tensors;
  std::vector<SubjectPiece> pieces; ///< those of one tensor together
  std::vector<SubjectWhole> wholes;
  std::vector<SubjectOpaque> opaques;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
};

/// A part, and what it is over all ranks.
struct WholePart {
  /// Collective.
  explicit WholePart(const CheckpointPart& own);

  CheckpointPart part;
  WholeModel model;
};

/// Collective. @return those of the subject, in its order.
std::vector<WholePart> whole_parts_of(const CheckpointSubject& subject);

/// Of each part. Buffers are with the first one, whose module has the others in
/// it.
std::vector<SubjectTensors> tensors_of(const std::vector<WholePart>& parts);

/// The values of one piece after the other, holding one tensor at a time.
class PieceReader {
 public:
  /// @param tensors outlives the reader.
  explicit PieceReader(const SubjectTensors& tensors) : tensors_(tensors) {}

  /// [piece.stretch.numel], valid as long as pieces of the same tensor are
  /// asked for. Blocks.
  at::Tensor values(const SubjectPiece& piece);
  /// What was written to the values of the last piece's tensor counts from here
  /// on. Blocks.
  void store();

 private:
  const SubjectTensors& tensors_;
  std::optional<size_t> held_;
  at::Tensor values_;
};

} // namespace tessera
