// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/name_table.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "tessera/zoo/formats/checkpoint_names.h"
#include "tessera/zoo/formats/numbered_names.h"
#include "tessera/zoo/layers/linear.h"

#include <torch/types.h>

#include <memory>
#include <utility>

namespace tessera::zoo {

namespace {

/// The row of the table that a parameter is in, and its index in the row.
struct Line {
  const NameRule* rule = nullptr;
  NumberedName match;
  bool is_head = false;
};

Line line_of(const NameTable& table, const std::string& name) {
  Line line;
  const auto look = [&](const std::vector<NameRule>& rules, bool is_head) {
    for (const NameRule& rule : rules) {
      for (const std::string& native : rule.native) {
        NumberedName match = match_module(native, name);
        if (!match.found) {
          continue;
        }
        TESSERA_CHECK(
            line.rule == nullptr,
            "the name table has two entries for '{}': '{}' and '{}'",
            name,
            line.rule->foreign,
            rule.foreign);
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

std::vector<MappedWeight> NamedWeight::contents() const {
  std::vector<MappedWeight> weights;
  int64_t row = 0;
  for (size_t i = 0; i < native.size(); ++i) {
    weights.push_back({native[i], sizes[i], shape(), row, transposed});
    row += sizes[i].empty() ? 0 : sizes[i][0];
  }
  return weights;
}

at::Tensor NamedWeight::assemble(
    const std::vector<at::Tensor>& parameters) const {
  const at::Tensor full =
      parameters.size() == 1 ? parameters.front() : at::cat(parameters, 0);
  return (transposed ? full.t() : full).contiguous();
}

WeightNames::WeightNames(
    const torch::nn::Module& module,
    const NameTable& table)
    : table_(table) {
  const TensorSpecs specs = specs_in(module);
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const auto& item : module.named_parameters()) {
    sizes.emplace(
        item.key(), specs.at(item.value().unsafeGetTensorImpl()).sizes);
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
        filled(line.rule->foreign, line.match);
    const auto [found, is_new] = index.emplace(weight.name, weights_.size());
    if (!is_new) {
      continue;
    }
    for (const std::string& pattern : line.rule->native) {
      const std::string native = filled(pattern, line.match);
      const auto its = sizes.find(native);
      TESSERA_CHECK(
          its != sizes.end(),
          "the name table's '{}' needs '{}', which the model does not have",
          line.rule->foreign,
          native);
      indices_.emplace(native, std::pair(found->second, weight.native.size()));
      weight.native.push_back(native);
      weight.sizes.push_back(its->second);
    }
    weight.transposed = line.rule->layout == NameRule::kTransposed &&
                        weight.sizes.front().size() == 2;
    weights_.push_back(std::move(weight));
  }
}

const NamedWeight& WeightNames::of(const std::string& our_name, size_t* index)
    const {
  const auto found = indices_.find(our_name);
  TESSERA_CHECK(
      found != indices_.end(),
      "'{}' is not a parameter of the model that the names were made for",
      our_name);
  if (index != nullptr) {
    *index = found->second.second;
  }
  return weights_[found->second.first];
}

OtherNames WeightNames::by_parameter() const {
  OtherNames names;
  for (const NamedWeight& weight : weights_) {
    for (const std::string& native : weight.native) {
      names[native].push_back(weight.name);
    }
  }
  return names;
}

WeightMap WeightNames::map(const std::vector<std::string>& in_files) const {
  CheckpointNames::Contents contents;
  for (const NamedWeight& weight : weights_) {
    contents.emplace(weight.name, weight.contents());
  }
  const auto names = std::make_shared<const CheckpointNames>(
      table_, std::move(contents), in_files);
  return [names](std::string_view name) { return names->contents_of(name); };
}

} // namespace tessera::zoo
