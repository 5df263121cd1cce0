// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/gguf/gguf_export.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "tessera/zoo/formats/waiting_parts.h"
#include "tessera/zoo/gguf/gguf_encode.h"
#include "tessera/zoo/gguf/gguf_model.h"
#include "tessera/zoo/gguf/gguf_names.h"
#include "tessera/zoo/gguf/gguf_tokenizer.h"
#include "tessera/zoo/layers/linear.h"

#include <ATen/ops/cat.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace tessera::zoo {

namespace {

/// ggml's matrices are [out, in], like ours, even if the checkpoint transposes
/// them.
std::vector<int64_t> shape_of(const NamedWeight& weight) {
  NamedWeight as_ours = weight;
  as_ours.transposed = false;
  return as_ours.shape();
}

/// Reorders the rows of each head from rotated halves to pairs of neighbors:
/// row i of n moves to 2i, row n/2 + i to 2i + 1.
at::Tensor paired(const at::Tensor& rows, int64_t heads) {
  const int64_t half = rows.size(0) / heads / 2;
  return rows.unflatten(0, {heads, 2, half}).transpose(1, 2).flatten(0, 2);
}

uint32_t file_type(GgufType type) { // llama.cpp's numbers for whole files
  return type == GgufType::kQ8_0 ? 7 : static_cast<uint32_t>(type);
}

/// A GGUF file, to be written.
class GgufFile : public engine::TensorSink {
 public:
  GgufFile(
      const Model& model,
      std::filesystem::path file,
      const GgufOptions& options,
      SavedValue change)
      : file_(std::move(file)),
        change_(std::move(change)),
        names_(model, model.names()),
        description_(describe_gguf(model)) {
    for (const NamedWeight& weight : names_.weights()) {
      const GgufMatrix matrix =
          gguf_matrix(description_.architecture, weight.name);
      std::vector<int64_t> shape = shape_of(weight);
      if (matrix.expert) {
        shape.insert(shape.begin(), description_.experts);
      }
      if (matrix.expert.value_or(0) == 0) {
        add(matrix.name, shape, options.type);
      }
    }
    for (const auto& [name, tensor] : description_.more) {
      add(name, tensor.sizes().vec(), GgufType::kF32);
    }
    metadata_ = {
        {"general.architecture", description_.architecture},
        {"general.type", std::string("model")}};
    if (!options.name.empty()) {
      metadata_.emplace_back("general.name", options.name);
    }
    metadata_.emplace_back("general.file_type", file_type(options.type));
    metadata_.emplace_back("general.quantization_version", uint32_t{2});
    metadata_.insert(
        metadata_.end(),
        description_.metadata.begin(),
        description_.metadata.end());
    for (auto& entry : gguf_tokenizer(
             options.tokenizer_folder, model.config(), description_.vocab)) {
      metadata_.push_back(std::move(entry));
    }
  }

  void prepare(const std::vector<ModelTensor>& /*tensors*/) override {}

  bool wants(const ModelTensor& tensor) const override {
    return !tensor.is_buffer && names_.has_any(tensor.spec.names);
  }

  void open() override {
    if (file_.has_parent_path()) {
      std::error_code code;
      std::filesystem::create_directories(file_.parent_path(), code);
    }
    writer_.emplace(file_, metadata_, tensors_);
    for (const auto& [name, tensor] : description_.more) {
      writer_->write(name, gguf_bytes(tensor, GgufType::kF32));
    }
  }

  void write(const ModelTensor& tensor, const at::Tensor& value) override {
    for (const std::string& name : tensor.spec.names) {
      if (names_.has(name)) {
        add_value(name, change_ ? change_(name, value) : value);
      }
    }
  }

  void commit() override {
    writer_->commit();
  }

 private:
  /// Writes a tensor as soon as all parameters that it contains have arrived.
  void add_value(const std::string& our_name, const at::Tensor& value) {
    size_t index = 0;
    const NamedWeight& weight = names_.of(our_name, &index);
    const auto parts = waiting_.add(weight, index, value);
    if (parts.empty()) {
      return;
    }
    const GgufMatrix to = gguf_matrix(description_.architecture, weight.name);
    const std::string module = to.name.substr(0, to.name.find_last_of('.'));
    at::Tensor full = parts.size() == 1 ? parts.front() : at::cat(parts, 0);
    for (const auto& [end, heads] : description_.paired_heads) {
      if (module.ends_with(end)) {
        full = paired(full, heads);
      }
    }
    const auto bytes = gguf_bytes(full, types_.at(to.name));
    if (to.expert) {
      writer_->write(to.name, bytes, *to.expert, description_.experts);
    } else {
      writer_->write(to.name, bytes);
    }
  }

  void add(
      const std::string& name,
      const std::vector<int64_t>& shape,
      GgufType wanted) {
    GgufTensor tensor{name, GgufType::kF32, shape};
    tensor.type = gguf_type_of(tensor, wanted);
    types_.emplace(name, tensor.type);
    tensors_.push_back(std::move(tensor));
  }

  std::filesystem::path file_;
  SavedValue change_;
  WeightNames names_;
  GgufModel description_;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, GgufType> types_;
  WaitingParts waiting_;
  std::optional<GgufWriter> writer_;
};

} // namespace

void export_gguf(
    const Model& model,
    const std::filesystem::path& file,
    const GgufOptions& options,
    const SavedValue& change) {
  const TensorSpecs specs = specs_in(model);
  TESSERA_CHECK(
      std::none_of(
          specs.begin(),
          specs.end(),
          [](const auto& item) { return item.second.is_divided(); }) &&
          !model.names().is_part,
      "GGUF export of '{}': this rank holds only part of the model; export a folder written by save_pretrained() instead",
      file.string());
  for (const auto& item : model.named_parameters()) {
    TESSERA_CHECK(
        change || !is_adapter_parameter(item.key()),
        "GGUF export: the model has adapters, such as '{}'; merge them with merge_lora(), or pass merged_values()",
        item.key());
  }
  GgufFile written(model, file, options, change);
  ModelTensors full(model);
  engine::write_model(full, written, "GGUF export");
}

} // namespace tessera::zoo
