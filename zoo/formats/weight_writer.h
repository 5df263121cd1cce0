// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WeightWriter` writes the weights of a model in transformers' format,
// parameter by parameter.

#include "tessera/sharding/tensors/tensor_io.h"
#include "tessera/zoo/formats/name_table.h"
#include "tessera/zoo/formats/waiting_parts.h"

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

using ParameterTypes = std::map<std::string, at::ScalarType>;

/// Writes model.safetensors from parameters that arrive one at a time, in any
/// order: a tensor is written, and its parts are freed, as soon as it is
/// complete.
class WeightWriter {
 public:
  /// @param dtypes of each of our parameters.
  /// @param max_shard_bytes maximum bytes of tensors per file; above it, writes
  ///     "model-00001-of-00002.safetensors", ... and an index, as transformers
  ///     does. 0: no limit.
  WeightWriter(
      const std::filesystem::path& file,
      const WeightNames& names,
      const ParameterTypes& dtypes,
      int64_t max_shard_bytes = 0);

  /// @param value whole. It is copied if it cannot be written at once.
  void add(const std::string& our_name, const at::Tensor& value);

  /// @throws tessera::Error if a parameter has not been added.
  void commit();

 private:
  void write_index() const;

  std::filesystem::path file_;
  const WeightNames& names_;
  std::vector<std::filesystem::path> shard_files_;
  std::deque<sharding::TensorFileWriter> shards_;
  std::map<std::string, size_t> shard_of_; ///< by their name
  int64_t total_bytes_ = 0;
  WaitingParts waiting_;
};

} // namespace tessera::zoo
