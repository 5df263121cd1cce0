// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/checkpointing/divided_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace tessera::sharding {

DividedTensor::DividedTensor(const at::Tensor& full, Communicator& group)
    : group_(&group), sizes_(full.sizes().vec()) {
  const at::Tensor dense = full.is_non_overlapping_and_dense()
                               ? full.detach()
                               : full.detach().contiguous();
  strides_ = dense.strides().vec();
  flat_ = dense.as_strided({dense.numel()}, {1});
}

at::Tensor DividedTensor::take_part() {
  const at::Tensor flat = std::exchange(flat_, at::Tensor());
  const int64_t length = (flat.numel() + group_->size() - 1) / group_->size();
  const int64_t begin = std::min(length * group_->rank(), flat.numel());
  const int64_t count = std::min(length, flat.numel() - begin);
  at::Tensor part = at::zeros({length}, flat.options());
  part.narrow(0, 0, count).copy_(flat.narrow(0, begin, count));
  return part;
}

at::Tensor DividedTensor::gather(const at::Tensor& part) const {
  const at::Tensor all =
      at::empty({part.numel() * group_->size()}, part.options());
  group_
      ->all_gather(
          all,
          part,
          "gather of a checkpointed block's input in the group '" +
              group_->name() + "'")
      .wait();
  return all.as_strided(sizes_, strides_);
}

} // namespace tessera::sharding
