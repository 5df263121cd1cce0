// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint_weights.h"

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/optim/state_names.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

using sharding::TensorBlock;
using sharding::WeightEntry;

constexpr const char* kBuffer = "buffer/";

std::vector<int64_t> permuted(
    const std::vector<int64_t>& values,
    const std::vector<size_t>& order) {
  std::vector<int64_t> result;
  for (const size_t d : order) {
    result.push_back(values[d]);
  }
  return result;
}

/// Lists what a checkpoint has of each parameter and buffer.
class WeightListing {
 public:
  explicit WeightListing(CheckpointReader& reader) : reader_(reader) {}

  std::map<std::string, WeightEntry> list() {
    const CheckpointManifest& manifest = reader_.manifest();
    for (int r = 0; r < reader_.world_size(); ++r) {
      for (const SavedTensor& tensor :
           manifest.ranks[static_cast<size_t>(r)].tensors) {
        if (tensor.part && tensor.state == kMasterState) {
          add_region(r, tensor);
        } else if (tensor.name.starts_with(kBuffer)) {
          add_buffer(r, tensor);
        }
      }
    }
    for (const auto& [name, parameter] : manifest.parameters) {
      check_complete(name, parameter);
    }
    return std::move(entries_);
  }

 private:
  std::shared_ptr<const sharding::DataCheck> check_of(
      int r,
      const SavedTensor& tensor,
      std::span<const std::byte> data) {
    return std::make_shared<const sharding::DataCheck>(
        formatted(
            "{}: tensor '{}'",
            reader_.files().file(r).path().string(),
            tensor.name),
        data,
        tensor.checksum);
  }

  void add_region(int r, const SavedTensor& tensor) {
    const SavedParameter& parameter =
        reader_.manifest().parameters.at(tensor.parameter);
    const runtime::SafetensorsEntry& stored = reader_.files().stored(r, tensor);
    WeightEntry& entry = entries_[tensor.parameter];
    entry.name = tensor.parameter;
    entry.dtype = stored.dtype;
    entry.shape = parameter.sizes;
    numel_[tensor.parameter] += tensor.part->numel;
    const auto check = check_of(r, tensor, stored.data);
    for (TensorBlock& block : blocks_in(tensor, parameter)) {
      entry.regions.push_back({std::move(block), stored.data, check});
    }
  }

  /// Pieces are in the order of the parameter's memory, which need not be that
  /// of its dimensions.
  std::vector<TensorBlock> blocks_in(
      const SavedTensor& tensor,
      const SavedParameter& parameter) {
    std::vector<size_t> order(parameter.sizes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return parameter.strides[a] > parameter.strides[b];
    });
    const auto sizes = permuted(parameter.sizes, order);
    const bool is_dense = sharding::row_major_strides(sizes) ==
                          permuted(parameter.strides, order);
    if (parameter.strides == sharding::row_major_strides(parameter.sizes)) {
      return sharding::blocks_of(parameter.sizes, *tensor.part);
    }
    TESSERA_CHECK(
        is_dense && tensor.part->ranges.empty(),
        "{}: the memory of parameter '{}' has gaps or overlaps; only Engine::load() of the same model reads it",
        reader_.path(),
        tensor.parameter);
    std::vector<TensorBlock> blocks = sharding::blocks_of(sizes, *tensor.part);
    for (TensorBlock& block : blocks) {
      for (auto* one : {&block.begin, &block.sizes, &block.layout.strides}) {
        std::vector<int64_t> values(one->size());
        for (size_t d = 0; d < order.size(); ++d) {
          values[order[d]] = (*one)[d];
        }
        *one = std::move(values);
      }
    }
    return blocks;
  }

  void add_buffer(int r, const SavedTensor& tensor) {
    const std::string name = tensor.name.substr(std::string(kBuffer).size());
    if (entries_.count(name) > 0) {
      return; // of an earlier rank
    }
    const runtime::SafetensorsEntry& stored = reader_.files().stored(r, tensor);
    WeightEntry entry = sharding::full_entry(stored);
    entry.name = name;
    for (sharding::FileRegion& region : entry.regions) {
      region.check = check_of(r, tensor, stored.data);
    }
    entries_.emplace(name, std::move(entry));
  }

  void check_complete(const std::string& name, const SavedParameter& parameter)
      const {
    const auto found = numel_.find(name);
    const int64_t numel = sharding::numel_of(parameter.sizes, {});
    TESSERA_CHECK(
        (found == numel_.end() ? 0 : found->second) == numel,
        "{}: {} of {} elements of parameter '{}' are not in any file; the checkpoint is damaged: load another one",
        reader_.path(),
        numel - (found == numel_.end() ? 0 : found->second),
        numel,
        name);
  }

  CheckpointReader& reader_;
  std::map<std::string, WeightEntry> entries_;
  std::map<std::string, int64_t> numel_; ///< found, of parameters
};

} // namespace

bool is_checkpoint(const fs::path& path) {
  return fs::is_directory(path) && (fs::exists(path / "manifest.json") ||
                                    !list_checkpoints(path).empty());
}

sharding::WeightFiles checkpoint_weights(const fs::path& path) {
  const fs::path checkpoint = find_checkpoint(path);
  const auto reader = std::make_shared<CheckpointReader>(checkpoint);
  sharding::WeightSet set{WeightListing(*reader).list(), {reader}};
  return sharding::WeightFiles::of(checkpoint, std::move(set));
}

sharding::WeightFiles open_weights(const fs::path& path) {
  return is_checkpoint(path) ? checkpoint_weights(path)
                             : sharding::WeightFiles::open(path);
}

} // namespace tessera::engine
