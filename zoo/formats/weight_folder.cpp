// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/weight_folder.h"

#include <utility>

namespace tessera::zoo {

ParameterSizes parameter_sizes(const std::vector<ModelTensor>& tensors) {
  ParameterSizes sizes;
  for (const ModelTensor& tensor : tensors) {
    for (const std::string& name : tensor.spec.names) {
      if (!tensor.is_buffer) {
        sizes.emplace(name, tensor.spec.sizes);
      }
    }
  }
  return sizes;
}

WeightFolder::WeightFolder(
    NamesOf names_of,
    SavedValue change,
    int64_t max_shard_bytes)
    : names_of_(std::move(names_of)),
      change_(std::move(change)),
      max_shard_bytes_(max_shard_bytes) {}

void WeightFolder::prepare(const std::vector<ModelTensor>& tensors) {
  for (const ModelTensor& tensor : tensors) {
    for (const std::string& name : tensor.spec.names) {
      if (!tensor.is_buffer) {
        dtypes_.emplace(name, tensor.spec.dtype);
      }
    }
  }
  names_.emplace(names_of_(parameter_sizes(tensors)));
}

bool WeightFolder::wants(const ModelTensor& tensor) const {
  return !tensor.is_buffer && names_->has_any(tensor.spec.names);
}

void WeightFolder::open() {
  weights_.emplace(create(dtypes_), *names_, dtypes_, max_shard_bytes_);
}

void WeightFolder::write(const ModelTensor& tensor, const at::Tensor& value) {
  for (const std::string& name : tensor.spec.names) {
    if (names_->has(name)) {
      weights_->add(name, change_ ? change_(name, value) : value);
    }
  }
}

void WeightFolder::commit() {
  weights_->commit();
  publish();
}

} // namespace tessera::zoo
