// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a model as transformers keeps them, parameter by parameter.

#include "tessera/runtime/io/safetensors.h"
#include "tessera/zoo/models/name_table.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Writes model.safetensors from parameters that come one at a time, in any
/// order: a tensor is written, and its parts are dropped, as soon as all of
/// them are here.
class WeightWriter {
 public:
  /// @param dtype of each parameter of ours.
  WeightWriter(
      const std::filesystem::path& file,
      const WeightNames& names,
      const std::map<std::string, at::ScalarType>& dtypes);

  /// @param value whole. It is copied if it cannot be written at once.
  void add(const std::string& our_name, const at::Tensor& value);

  /// @throws tessera::Error when a parameter has not been added.
  void commit();

 private:
  const WeightNames& names_;
  SafetensorsWriter writer_;
  std::map<std::string, std::vector<at::Tensor>> waiting_; ///< by their name
};

/// The dtypes of a module's parameters, by name.
std::map<std::string, at::ScalarType> parameter_dtypes(
    const torch::nn::Module& module);

} // namespace tessera::zoo
