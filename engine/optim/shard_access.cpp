// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/shard_access.h"

#include "tessera/runtime/core/error.h"

namespace tessera {

ShardAccess::ShardAccess(
    ParamGroup& group,
    const GradientBucket& bucket,
    StatePlacement placement)
    : group_(group),
      bucket_(bucket),
      device_(
          placement == StatePlacement::kHost ? at::Device(at::kCPU)
                                             : group.master().device()) {
  TESSERA_CHECK(
      at::isFloatingType(group.master().scalar_type()),
      "optimizer: weights of type ",
      group.master().scalar_type(),
      " in group '",
      group.name(),
      "' cannot be trained; freeze them (requires_grad_(false)) before wrap.");
}

at::ScalarType ShardAccess::dtype() const {
  return group_.master().scalar_type() == at::kDouble ? at::kDouble
                                                      : at::kFloat;
}

bool ShardAccess::mirrored() const {
  return device_ != group_.master().device();
}

int64_t ShardAccess::bytes() const {
  return mirrored() ? group_.layout().shard_numel() *
                          static_cast<int64_t>(c10::elementSize(dtype()))
                    : 0;
}

bool ShardAccess::rounds_in_kernel() const {
  const at::ScalarType type = group_.shard().scalar_type();
  return group_.has_own_master() &&
         (type == at::kBFloat16 || type == at::kHalf);
}

void ShardAccess::allocate(MemoryLedger& ledger) {
  if (mirrored()) {
    mirror_.emplace(group_.master(), dtype(), ledger);
    write_backs_ = group_.write_backs();
  }
}

ShardTensors ShardAccess::begin() {
  ShardTensors tensors;
  const at::Tensor& master = group_.master();
  if (mirrored()) {
    if (write_backs_ != group_.write_backs()) {
      mirror_->load();
      write_backs_ = group_.write_backs();
    }
    tensors.master = mirror_->tensor();
  } else if (master.scalar_type() == dtype()) {
    tensors.master = master;
    if (rounds_in_kernel()) {
      tensors.low_precision = group_.shard();
    }
  } else {
    tensors.master = master.to(dtype());
    tensors.low_precision = master;
  }
  tensors.gradient = bucket_.shard();
  const at::ScalarType type = tensors.gradient.scalar_type();
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  tensors.gradient = tensors.gradient.to(
      device_, narrow ? type : tensors.master.scalar_type());
  return tensors;
}

void ShardAccess::end() {
  if (mirrored() || !rounds_in_kernel()) {
    master_was_written();
  }
}

void ShardAccess::master_was_written() {
  if (mirrored()) {
    mirror_->store();
  }
  group_.round_master();
  write_backs_ = group_.write_backs();
}

} // namespace tessera
