// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SubjectTensors` lists the tensors of this rank that a checkpoint contains.

#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/engine/checkpoint/model_tensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

/// A flat tensor of the engine on any tier.
struct SubjectTensor {
  at::ScalarType dtype = at::kFloat;
  /// Returns its values in memory. Blocks.
  std::function<at::Tensor()> load;
  /// Writes back values that load() returned and the caller changed. Blocks.
  std::function<void(const at::Tensor&)> store;
};

/// A part of a parameter, or of a state that has its shape.
struct StateSlice {
  std::string parameter; ///< its first name in the whole model
  std::string state;
  TensorSlice part;
  size_t group = 0; ///< of the parameter
  size_t tensor = 0; ///< index in SubjectTensors::tensors
  int64_t tensor_offset = 0;
};

/// A tensor that belongs to a parameter and is the same on all ranks that have
/// the parameter.
struct SubjectFullTensor {
  std::string parameter;
  std::string state;
  at::Tensor values;
};

/// State that only the same rank of the same layout can load.
struct SubjectOpaque {
  std::string name;
  std::function<at::Tensor()> save;
  std::function<void(const at::Tensor&)> load;
  std::function<void()> reset; ///< see StateVisitor::opaque(); may be null
};

struct SubjectTensors {
  std::vector<SubjectTensor> tensors;
  std::vector<StateSlice> slices; ///< grouped by tensor
  std::vector<SubjectFullTensor> full_tensors;
  std::vector<SubjectOpaque> opaques;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
};

/// @param model of all ranks.
SubjectTensors tensors_of(
    const CheckpointSubject& subject,
    const ModelTensors& model);

/// Reads the values of pieces one after the other, holding one tensor at a
/// time.
class SliceReader {
 public:
  /// @param tensors must outlive the reader.
  explicit SliceReader(const SubjectTensors& tensors) : tensors_(tensors) {}

  /// The values, [piece.part.numel]; valid while only pieces of the same
  /// tensor are asked for. Blocks.
  at::Tensor values(const StateSlice& slice);
  /// Stores what was written to the values of the last piece's tensor. Blocks.
  void store();

 private:
  const SubjectTensors& tensors_;
  std::optional<size_t> held_;
  at::Tensor values_;
};

} // namespace tessera::engine
