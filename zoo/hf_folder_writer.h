// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes a folder that transformers loads.

#include "tessera/runtime/io/safetensors.h"
#include "tessera/zoo/atomic_folder.h"

#include <torch/nn/module.h>
#include <torch/types.h>
#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A Hugging Face folder that is written one tensor at a time, so that a model
/// that is never whole in one place can be exported. Nothing is visible before
/// commit(), and the folder that was there stays till then. Used by one thread
/// of one rank; blocks on the disk.
///
/// The files: config.json, model.safetensors, and those of vocab.txt,
/// tokenizer.json, tokenizer_config.json, special_tokens_map.json and
/// added_tokens.json that the tokenizer's folder has. The same tensors give the
/// same bytes, in whatever order they come.
class HfFolderWriter {
 public:
  /// @param config the content of config.json.
  /// @param specs every tensor to come.
  /// @param tokenizer_folder where the tokenizer's files are copied from;
  /// empty to copy none. May be `folder` itself.
  /// @throws Error when the disk is full, or when `folder` exists and holds
  /// other files than these.
  HfFolderWriter(
      const std::filesystem::path& folder,
      const nlohmann::json& config,
      const std::vector<SafetensorsSpec>& specs,
      const std::filesystem::path& tokenizer_folder);

  /// Writes one tensor, from any device.
  /// @throws Error when its dtype or shape is not that of its spec, or when it
  /// was written before.
  void write(std::string_view name, const torch::Tensor& tensor);

  /// Makes the folder durable and visible.
  /// @throws Error when a tensor is missing.
  void commit();

 private:
  std::map<std::string, SafetensorsSpec, std::less<>> specs_;
  AtomicFolder folder_;
  SafetensorsWriter weights_;
};

/// The specs of all parameters of a module. Reads no data.
std::vector<SafetensorsSpec> safetensors_specs(const torch::nn::Module& module);

} // namespace tessera
