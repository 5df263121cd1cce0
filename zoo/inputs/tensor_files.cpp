// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/tensor_files.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <torch/types.h>

#include <string>
#include <vector>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

/// The numbers of nested lists, row by row.
class NestedLists {
 public:
  NestedLists(const nlohmann::json& lists, std::string place)
      : place_(std::move(place)) {
    const nlohmann::json* inner = &lists;
    while (inner->is_array()) {
      TESSERA_CHECK(
          sizes_.size() < kMostDims,
          "{} has too many levels of nested lists",
          place_);
      sizes_.push_back(static_cast<int64_t>(inner->size()));
      if (inner->empty()) {
        break;
      }
      inner = &inner->front();
    }
    add(lists, 0, place_);
  }

  torch::Tensor tensor() const {
    const torch::Tensor values =
        are_integers_
            ? torch::tensor(integers_, torch::kInt64)
            : torch::tensor(numbers_, torch::kFloat64).to(torch::kFloat);
    return values.view(sizes_);
  }

 private:
  static constexpr size_t kMostDims = 8;

  void add(const nlohmann::json& value, size_t depth, const std::string& at) {
    if (depth < sizes_.size()) {
      TESSERA_CHECK(
          value.is_array() &&
              static_cast<int64_t>(value.size()) == sizes_[depth],
          "{} is {}; the first row is a list of {}, and all rows must have the same length",
          at,
          runtime::show_json(value),
          sizes_[depth]);
      for (size_t i = 0; i < value.size(); ++i) {
        add(value[i], depth + 1, at + "[" + std::to_string(i) + "]");
      }
      return;
    }
    TESSERA_CHECK(
        value.is_number() || value.is_boolean(),
        "{} is {}; it must be a number",
        at,
        runtime::show_json(value));
    const bool is_integer = value.is_number_integer() || value.is_boolean();
    are_integers_ = are_integers_ && is_integer;
    numbers_.push_back(
        value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0)
                           : value.get<double>());
    integers_.push_back(
        value.is_boolean() ? static_cast<int64_t>(value.get<bool>())
        : is_integer       ? value.get<int64_t>()
                           : 0);
  }

  std::string place_;
  std::vector<int64_t> sizes_;
  bool are_integers_ = true;
  std::vector<int64_t> integers_;
  std::vector<double> numbers_;
};

} // namespace

NamedTensors read_named_tensors(const fs::path& path) {
  if (path.extension() == ".safetensors") {
    NamedTensors tensors;
    const auto file = runtime::SafetensorsFile::open(path);
    for (const runtime::SafetensorsEntry& entry : file.entries()) {
      tensors.emplace(entry.name, sharding::loaded_tensor(entry));
    }
    return tensors;
  }
  const nlohmann::json json =
      runtime::parse_json(runtime::read_text_file(path), path.string());
  TESSERA_CHECK(
      json.is_object() && !json.empty(),
      "{} is {}; it must be an object such as {{\"input_ids\": [[5, 7]]}}",
      path,
      runtime::show_json(json));
  NamedTensors tensors;
  for (const auto& [name, value] : json.items()) {
    tensors.emplace(
        name, NestedLists(value, path.string() + ": '" + name + "'").tensor());
  }
  return tensors;
}

void write_named_tensors(const fs::path& path, const NamedTensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back(
        full_spec({name}, tensor.sizes().vec(), tensor.scalar_type()));
  }
  if (path.has_parent_path()) {
    fs::create_directories(path.parent_path());
  }
  sharding::TensorFileWriter writer(path, specs);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.commit();
}

} // namespace tessera::zoo
