// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TensorSink` writes the tensors of a whole model to some kind of file;
// `write_model()` gives it their values.

#include "tessera/engine/checkpoint/model_tensors.h"

#include <string>
#include <vector>

namespace tessera::engine {

/// What a model is written to. Every rank asks which tensors are written; rank
/// 0 of ModelTensors::ranks() writes them.
class TensorSink {
 public:
  virtual ~TensorSink() = default;

  /// Called first, on every rank.
  /// @param tensors all of the model.
  virtual void prepare(const std::vector<ModelTensor>& tensors) = 0;
  /// Returns whether the tensor is written; the same on every rank.
  virtual bool wants(const ModelTensor& tensor) const = 0;

  /// Creates the files.
  virtual void open() = 0;
  /// Called once for each tensor that is wanted.
  /// @param value contiguous, on the CPU, valid during the call.
  virtual void write(const ModelTensor& tensor, const at::Tensor& value) = 0;
  /// Called after all tensors; makes the files visible.
  virtual void commit() = 0;
};

/// Writes a model, see ModelTensors::for_each(). Collective; blocks on the
/// disk.
/// @param label begins messages, e.g. "save_weights".
/// @throws tessera::Error on every rank if rank 0 cannot write.
void write_model(
    ModelTensors& model,
    TensorSink& sink,
    const std::string& label);

} // namespace tessera::engine
