// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/weight_writer.h"

#include "tessera/engine/checkpoint/tensor_io.h"
#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>

namespace tessera::zoo {

namespace {

std::vector<SafetensorsSpec> specs_of(
    const WeightNames& names,
    const std::map<std::string, at::ScalarType>& dtypes) {
  std::vector<SafetensorsSpec> specs;
  for (const NamedWeight& weight : names.weights()) {
    specs.push_back(
        {weight.name,
         saved_dtype_of(dtypes.at(weight.ours.front())),
         weight.shape()});
  }
  return specs;
}

} // namespace

WeightWriter::WeightWriter(
    const std::filesystem::path& file,
    const WeightNames& names,
    const std::map<std::string, at::ScalarType>& dtypes)
    // transformers refuses files that do not say "pt".
    : names_(names),
      writer_(file, specs_of(names, dtypes), {{"format", "pt"}}) {}

void WeightWriter::add(const std::string& our_name, const at::Tensor& value) {
  size_t place = 0;
  const NamedWeight& weight = names_.of(our_name, &place);
  std::vector<at::Tensor> parts(1, value.detach().cpu());
  if (weight.ours.size() > 1) {
    auto& waiting = waiting_[weight.name];
    waiting.resize(weight.ours.size());
    waiting[place] = parts.front().clone();
    if (std::any_of(waiting.begin(), waiting.end(), [](const auto& part) {
          return !part.defined();
        })) {
      return;
    }
    parts = std::move(waiting);
    waiting_.erase(weight.name);
  }
  const at::Tensor whole = weight.assemble(parts);
  if (whole.numel() > 0) {
    writer_.write(weight.name, raw_bytes(whole));
  }
}

void WeightWriter::commit() {
  TESSERA_CHECK(
      waiting_.empty(),
      "saving '",
      waiting_.begin()->first,
      "': not all of its parts have been added");
  writer_.commit();
}

std::map<std::string, at::ScalarType> parameter_dtypes(
    const torch::nn::Module& module) {
  std::map<std::string, at::ScalarType> dtypes;
  for (const auto& item : module.named_parameters()) {
    dtypes.emplace(item.key(), item.value().scalar_type());
  }
  return dtypes;
}

} // namespace tessera::zoo
