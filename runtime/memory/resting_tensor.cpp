// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/resting_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace tessera::runtime {

RestingTensor::RestingTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}

RestingTensor::RestingTensor(std::shared_ptr<StoredShard> shard)
    : shard_(std::move(shard)), tensor_(shard_->in_place()) {}

int64_t RestingTensor::numel() const {
  return in_memory() ? tensor_.numel() : shard_->numel();
}

at::ScalarType RestingTensor::dtype() const {
  return in_memory() ? tensor_.scalar_type() : shard_->dtype();
}

MemoryTier RestingTensor::tier() const {
  return shard_ != nullptr ? shard_->tier() : MemoryTier::kDevice;
}

int64_t RestingTensor::bytes() const {
  return shard_ != nullptr ? shard_->bytes()
                           : static_cast<int64_t>(tensor_.nbytes());
}

at::Tensor RestingTensor::tensor() const {
  return shard_ != nullptr ? shard_->in_place() : tensor_;
}

at::Tensor RestingTensor::tensor_on_stream(c10::Device device) const {
  return shard_ != nullptr ? shard_->in_place_on_stream(device) : tensor_;
}

void RestingTensor::used_on_current_stream(c10::Device device) const {
  if (shard_ != nullptr) {
    shard_->used_on_current_stream(device);
  }
}

PendingTransfer RestingTensor::read(const at::Tensor& into) const {
  return shard_ != nullptr ? shard_->read(into) : begin_copy(into, tensor_);
}

PendingTransfer RestingTensor::write(const at::Tensor& from) const {
  return shard_ != nullptr ? shard_->write(from) : begin_copy(tensor_, from);
}

at::Tensor RestingTensor::load() const {
  return in_memory() ? tensor() : load(c10::kCPU);
}

at::Tensor RestingTensor::load(c10::Device device) const {
  if (is_on(device)) {
    return tensor();
  }
  at::Tensor values =
      at::empty({numel()}, at::TensorOptions().dtype(dtype()).device(device));
  read(values).wait();
  return values;
}

void RestingTensor::store(const at::Tensor& values) const {
  const c10::NoGradGuard no_grad;
  if (!in_memory() || !values.is_alias_of(tensor_)) {
    write(values.to(dtype())).wait();
  }
}

} // namespace tessera::runtime
