// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/name_table.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/parallel_module.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/models/checkpoint_names.h"
#include "tessera/zoo/models/name_patterns.h"

#include <torch/types.h>

#include <memory>
#include <utility>

namespace tessera::zoo {

namespace {

/// The row of the table that a parameter is in, and its index in the row.
struct Line {
  const NameRule* rule = nullptr;
  NameMatch match;
  bool is_head = false;
};

Line line_of(const NameTable& table, const std::string& name) {
  Line line;
  const auto look = [&](const std::vector<NameRule>& rules, bool is_head) {
    for (const NameRule& rule : rules) {
      for (const std::string& ours : rule.ours) {
        NameMatch match = match_module(ours, name);
        if (!match.found) {
          continue;
        }
        TESSERA_CHECK(
            line.rule == nullptr,
            "the name table has two entries for '{}': '{}' and '{}'",
            name,
            line.rule->theirs,
            rule.theirs);
        line = {&rule, std::move(match), is_head};
      }
    }
  };
  look(table.base, false);
  look(table.head, true);
  TESSERA_CHECK(
      line.rule != nullptr || table.is_adapter,
      "the name table has no entry for the parameter '{}'",
      name);
  return line;
}

} // namespace

std::vector<int64_t> NamedWeight::shape() const {
  std::vector<int64_t> shape = sizes.front();
  for (size_t i = 1; i < sizes.size(); ++i) {
    shape[0] += sizes[i][0];
  }
  if (transposed) {
    std::swap(shape[0], shape[1]);
  }
  return shape;
}

at::Tensor NamedWeight::assemble(
    const std::vector<at::Tensor>& parameters) const {
  const at::Tensor whole =
      parameters.size() == 1 ? parameters.front() : at::cat(parameters, 0);
  return (transposed ? whole.t() : whole).contiguous();
}

WeightNames::WeightNames(
    const torch::nn::Module& module,
    const NameTable& table)
    : table_(table) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const auto& item : module.named_parameters()) {
    sizes.emplace(item.key(), item.value().sizes().vec());
  }
  for (const auto& child : module.named_modules()) {
    const auto* parallel = dynamic_cast<const ParallelModule*>(&*child.value());
    if (parallel == nullptr) {
      continue;
    }
    const int rank = parallel->how().group->rank();
    for (const auto& [name, part] : parallel->parts()) {
      const std::string full = child.key() + "." + name;
      sizes.at(full)[static_cast<size_t>(part.dim)] = part.split.size();
      parts_.emplace(
          full,
          Part{part.dim, part.split.begin(rank), part.split.length(rank)});
    }
  }
  add_weights(sizes);
}

WeightNames::WeightNames(
    const std::map<std::string, std::vector<int64_t>>& sizes,
    const NameTable& table)
    : table_(table) {
  add_weights(sizes);
}

void WeightNames::add_weights(
    const std::map<std::string, std::vector<int64_t>>& sizes) {
  std::map<std::string, size_t> index;
  for (const auto& item : sizes) {
    if (is_adapter_parameter(item.first) && !table_.is_adapter) {
      continue;
    }
    const Line line = line_of(table_, item.first);
    if (line.rule == nullptr) {
      continue;
    }
    NamedWeight weight;
    weight.name =
        (line.is_head || table_.is_base ? std::string() : table_.prefix) +
        filled(line.rule->theirs, line.match);
    const auto [found, is_new] = index.emplace(weight.name, weights_.size());
    if (!is_new) {
      continue;
    }
    for (const std::string& pattern : line.rule->ours) {
      const std::string ours = filled(pattern, line.match);
      const auto its = sizes.find(ours);
      TESSERA_CHECK(
          its != sizes.end(),
          "the name table's '{}' needs '{}', which the model does not have",
          line.rule->theirs,
          ours);
      places_.emplace(ours, std::pair(found->second, weight.ours.size()));
      weight.ours.push_back(ours);
      weight.sizes.push_back(its->second);
    }
    weight.transposed = line.rule->layout == NameRule::kTransposed &&
                        weight.sizes.front().size() == 2;
    weights_.push_back(std::move(weight));
  }
}

const NamedWeight& WeightNames::of(const std::string& our_name, size_t* place)
    const {
  const auto found = places_.find(our_name);
  TESSERA_CHECK(
      found != places_.end(),
      "'{}' is not a parameter of the model that the names were made for",
      our_name);
  if (place != nullptr) {
    *place = found->second.second;
  }
  return weights_[found->second.first];
}

std::vector<WeightPiece> WeightNames::pieces_of(
    const NamedWeight& weight) const {
  const std::vector<int64_t> shape = weight.shape();
  std::vector<WeightPiece> pieces;
  int64_t row = 0; // first row of ours in the tensor
  for (size_t i = 0; i < weight.ours.size(); ++i) {
    WeightPiece piece{weight.ours[i], shape, 0, weight.sizes[i], {}};
    piece.strides.assign(piece.sizes.size(), 1);
    for (size_t d = piece.sizes.size(); d-- > 1;) {
      piece.strides[d - 1] = piece.strides[d] * piece.sizes[d];
    }
    if (weight.transposed) {
      piece.strides = {1, shape[1]};
    }
    piece.offset = row * piece.strides[0];
    row += piece.sizes[0];
    if (const auto part = parts_.find(piece.name); part != parts_.end()) {
      const auto dim = static_cast<size_t>(part->second.dim);
      piece.offset += part->second.begin * piece.strides[dim];
      piece.sizes[dim] = part->second.length;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

PiecesOfWeight WeightNames::pieces(
    const std::vector<std::string>& in_files) const {
  std::map<std::string, std::vector<WeightPiece>, std::less<>> pieces;
  for (const NamedWeight& weight : weights_) {
    pieces.emplace(weight.name, pieces_of(weight));
  }
  const auto names = std::make_shared<const CheckpointNames>(
      table_, std::move(pieces), in_files);
  return [names](std::string_view name) { return names->pieces_in(name); };
}

} // namespace tessera::zoo
