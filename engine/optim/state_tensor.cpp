// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_tensor.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace tessera {

StateTensor::StateTensor(at::Tensor tensor)
    : tensor_(std::move(tensor)), in_memory_(true) {}

StateTensor::StateTensor(std::unique_ptr<StoredShard> shard)
    : shard_(std::move(shard)), in_memory_(shard_->in_place().defined()) {}

int64_t StateTensor::numel() const {
  return shard_ != nullptr ? shard_->numel() : tensor_.numel();
}

at::ScalarType StateTensor::dtype() const {
  return shard_ != nullptr ? shard_->dtype() : tensor_.scalar_type();
}

at::Tensor StateTensor::load() {
  if (in_memory()) {
    return tensor();
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
