// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights of a Hugging Face folder, in one safetensors file or in several.

#include "tessera/runtime/io/safetensors.h"

#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The tensors of a folder: of model.safetensors, or of the files that
/// model.safetensors.index.json names. The files stay mapped.
class HfCheckpoint {
 public:
  /// @throws Error when there are no safetensors, when a file is malformed, or
  /// when the index names a file or a tensor that is not there.
  static HfCheckpoint open(const std::filesystem::path& folder);

  /// By name. The entries live as long as this.
  const std::map<std::string, const SafetensorsEntry*>& entries() const {
    return entries_;
  }
  const std::filesystem::path& folder() const {
    return folder_;
  }

 private:
  HfCheckpoint() = default;

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const SafetensorsEntry*> entries_;
};

struct HfLoadOptions {
  /// The module's name of a checkpoint's tensor; "" leaves the tensor out.
  std::function<std::string(std::string_view)> rename;
  /// Parameters with one of these prefixes may be missing; they keep what they
  /// hold. All others must be there.
  std::vector<std::string> may_be_missing;
};

struct HfLoadReport {
  /// Parameters that the checkpoint does not have.
  std::vector<std::string> missing;
  /// Tensors of the checkpoint that `rename` left out.
  std::vector<std::string> left_out;
};

/// Copies a checkpoint into the parameters of `module`, whatever their device;
/// F16 and BF16 are converted to the parameter's dtype.
/// @throws Error, with the module unchanged, that names every tensor that is
/// missing, unexpected, of another shape or of another dtype than F32, F16,
/// BF16.
HfLoadReport load_hf_weights(
    torch::nn::Module& module,
    const HfCheckpoint& checkpoint,
    const HfLoadOptions& options);

} // namespace tessera
