// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/weight_writer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <utility>

namespace tessera::zoo {

namespace {

std::vector<TensorSpec> specs_of(
    const WeightNames& names,
    const ParameterTypes& dtypes) {
  std::vector<TensorSpec> specs;
  for (const NamedWeight& weight : names.weights()) {
    const at::ScalarType dtype = dtypes.at(weight.native.front());
    specs.push_back(full_spec({weight.name}, weight.shape(), dtype));
    if (const auto copy = names.copies().find(weight.name);
        copy != names.copies().end()) {
      specs.push_back(full_spec({copy->second}, weight.shape(), dtype));
    }
  }
  return specs;
}

/// "model-00002-of-00003.safetensors"
std::filesystem::path shard_file(
    const std::filesystem::path& file,
    size_t index,
    size_t count) {
  std::array<char, 32> numbers{};
  std::snprintf(
      numbers.data(), numbers.size(), "-%05zu-of-%05zu", index + 1, count);
  return file.parent_path() /
         (file.stem().string() + numbers.data() + file.extension().string());
}

} // namespace

WeightWriter::WeightWriter(
    const std::filesystem::path& file,
    const WeightNames& names,
    const ParameterTypes& dtypes,
    int64_t max_shard_bytes)
    : file_(file), names_(names) {
  std::vector<std::vector<TensorSpec>> shards(1);
  int64_t bytes = 0; // of the last shard
  for (TensorSpec& spec : specs_of(names, dtypes)) {
    const int64_t weight_bytes =
        spec.numel() * static_cast<int64_t>(at::elementSize(spec.dtype));
    if (max_shard_bytes > 0 && bytes > 0 &&
        bytes + weight_bytes > max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += weight_bytes;
    total_bytes_ += weight_bytes;
    shard_of_.emplace(spec.name(), shards.size() - 1);
    shards.back().push_back(std::move(spec));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shard_files_.push_back(
        shards.size() == 1 ? file : shard_file(file, i, shards.size()));
    shards_.emplace_back(shard_files_.back(), shards[i]);
  }
}

void WeightWriter::add(const std::string& our_name, const at::Tensor& value) {
  size_t index = 0;
  const NamedWeight& weight = names_.of(our_name, &index);
  const auto parts = waiting_.add(weight, index, value.detach().cpu());
  if (parts.empty()) {
    return;
  }
  const at::Tensor full = weight.assemble(parts);
  shards_[shard_of_.at(weight.name)].write(weight.name, full);
  if (const auto copy = names_.copies().find(weight.name);
      copy != names_.copies().end()) {
    shards_[shard_of_.at(copy->second)].write(copy->second, full);
  }
}

void WeightWriter::commit() {
  TESSERA_CHECK(
      waiting_.incomplete().empty(),
      "saving '{}': some of its parts have not been added",
      waiting_.incomplete());
  for (sharding::TensorFileWriter& shard : shards_) {
    shard.commit();
  }
  if (shards_.size() > 1) {
    write_index();
  }
}

void WeightWriter::write_index() const {
  nlohmann::json weight_map;
  for (const auto& [name, shard] : shard_of_) {
    weight_map[name] = shard_files_[shard].filename().string();
  }
  const nlohmann::json index = {
      {"metadata", {{"total_size", total_bytes_}}}, {"weight_map", weight_map}};
  runtime::write_file_atomically(
      file_.string() + ".index.json", index.dump(2) + "\n");
}

} // namespace tessera::zoo
