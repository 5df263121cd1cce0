// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WeightFolder` writes the parameters of a model to a folder in transformers'
// format.

#include "tessera/engine/checkpoint/tensor_sink.h"
#include "tessera/zoo/formats/weight_writer.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

using ParameterSizes = std::map<std::string, std::vector<int64_t>>;
/// Computes the value written instead of a whole parameter's; of the same
/// dtype.
using SavedValue =
    std::function<at::Tensor(const std::string& name, const at::Tensor& value)>;

/// The sizes of all parameters, under each of their names.
ParameterSizes parameter_sizes(const std::vector<ModelTensor>& tensors);

/// A folder of weights; what else is in it is up to the derived class.
class WeightFolder : public engine::TensorSink {
 public:
  /// Returns the names in the files of a whole model's parameters; those that
  /// it lacks are not written.
  using NamesOf = std::function<WeightNames(const ParameterSizes& sizes)>;

  /// @param change empty: values unchanged.
  /// @param max_shard_bytes the maximum size of one file; above it there are
  ///     several, with an index. 0: no limit.
  explicit WeightFolder(
      NamesOf names_of,
      SavedValue change = {},
      int64_t max_shard_bytes = 0);

  void prepare(const std::vector<ModelTensor>& tensors) override;
  bool wants(const ModelTensor& tensor) const override;
  void open() override;
  void write(const ModelTensor& tensor, const at::Tensor& value) override;
  void commit() override;

 protected:
  /// Creates the folder.
  /// @return the safetensors file of the weights.
  virtual std::filesystem::path create(const ParameterTypes& dtypes) = 0;
  /// Makes the folder visible; called after the weights are written.
  virtual void publish() = 0;

 private:
  NamesOf names_of_;
  SavedValue change_;
  int64_t max_shard_bytes_;
  ParameterTypes dtypes_;
  std::optional<WeightNames> names_;
  std::optional<WeightWriter> weights_;
};

} // namespace tessera::zoo
