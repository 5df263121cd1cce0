// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/load_part_weights.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace tessera::engine {

namespace {

using Pieces = std::map<std::string, WeightPiece, std::less<>>;

WeightPiece piece_of(
    const std::string& name,
    const at::Tensor& tensor,
    const JobRanks& job) {
  WeightPiece piece{name, job.whole_sizes(tensor), 0, tensor.sizes().vec(), {}};
  piece.strides = row_major_strides(piece.shape);
  if (const auto part = job.part_of(tensor)) {
    piece.offset = part->begin * piece.strides[static_cast<size_t>(part->dim)];
  }
  return piece;
}

} // namespace

LoadWeightsOptions options_for_parts(
    LoadWeightsOptions options,
    const JobRanks& job,
    const torch::nn::Module& module) {
  if (options.pieces) {
    return options;
  }
  auto own = std::make_shared<Pieces>();
  const auto add = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      if (item.value().defined()) {
        own->emplace(item.key(), piece_of(item.key(), item.value(), job));
      }
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  options.pieces =
      [own, rename = std::move(options.rename)](
          std::string_view name) -> std::optional<std::vector<WeightPiece>> {
    const std::string wanted = rename ? rename(name) : std::string(name);
    if (wanted.empty()) {
      return std::vector<WeightPiece>();
    }
    const auto found = own->find(wanted);
    if (found == own->end()) {
      return std::nullopt;
    }
    return std::vector<WeightPiece>{found->second};
  };
  return options;
}

} // namespace tessera::engine
