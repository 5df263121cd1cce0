// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_tensor.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace tessera {

StateTensor::StateTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {}

StateTensor::StateTensor(std::unique_ptr<StoredShard> shard)
    : shard_(std::move(shard)), tensor_(shard_->in_place()) {}

int64_t StateTensor::numel() const {
  return in_memory() ? tensor_.numel() : shard_->numel();
}

at::ScalarType StateTensor::dtype() const {
  return in_memory() ? tensor_.scalar_type() : shard_->dtype();
}

at::Tensor StateTensor::load() {
  if (in_memory()) {
    return tensor_;
  }
  at::Tensor values = at::empty({numel()}, dtype());
  shard_->read(values).wait();
  return values;
}

void StateTensor::store(const at::Tensor& values) {
  if (!in_memory()) {
    shard_->write(values).wait();
  }
}

} // namespace tessera
