// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/shard_access.h"

#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera {

namespace {

bool is_narrow(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

} // namespace

ShardAccess::ShardAccess(
    ParamGroup& group,
    const GradientBucket& bucket,
    MemoryTier tier)
    : group_(group),
      bucket_(bucket),
      device_(
          tier == MemoryTier::kDevice ? group.shard().device()
                                      : at::Device(at::kCPU)) {
  TESSERA_CHECK(
      at::isFloatingType(group.dtype()),
      "optimizer: weights of type ",
      group.dtype(),
      " in group '",
      group.name(),
      "' cannot be trained; freeze them (requires_grad_(false)) before wrap.");
}

at::ScalarType ShardAccess::dtype() const {
  return group_.master_dtype() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Updates happen on another device than the parameters'.
bool ShardAccess::is_remote() const {
  return device_ != group_.shard().device();
}

bool ShardAccess::stages_master() const {
  StoredShard* stored = group_.stored_master();
  return stored != nullptr ? !stored->in_place().defined() : is_remote();
}

bool ShardAccess::rounds_in_kernel() const {
  return group_.has_own_master() && is_narrow(group_.dtype());
}

at::ScalarType ShardAccess::gradient_dtype() const {
  return is_narrow(bucket_.dtype()) ? bucket_.dtype() : dtype();
}

int64_t ShardAccess::stage_bytes() const {
  const int64_t numel = group_.layout().shard_numel();
  const auto bytes = [numel](bool staged, at::ScalarType type) {
    return staged ? StateStage::Buffer::bytes_for(numel, type) : 0;
  };
  return bytes(stages_master(), dtype()) +
         bytes(is_remote(), gradient_dtype()) +
         bytes(is_remote() && rounds_in_kernel(), group_.dtype());
}

at::Tensor ShardAccess::fetch(
    const at::Tensor& from,
    at::ScalarType dtype,
    StateStage::Buffer* buffer) {
  const at::Tensor place = buffer->place(from.numel(), dtype);
  if (from.scalar_type() == dtype) {
    arriving_.push_back(begin_copy(place, from));
  } else {
    place.copy_(from); // converts
  }
  return place;
}

void ShardAccess::begin_fetch(StateStage::Buffer* buffer) {
  group_.check_master();
  const int64_t numel = group_.layout().shard_numel();
  StoredShard* stored = group_.stored_master();
  if (stored != nullptr) {
    open_.master = stored->in_place();
    if (!open_.master.defined()) {
      open_.master = buffer->place(numel, dtype());
      arriving_.push_back(stored->read(open_.master));
    }
  } else if (is_remote()) {
    open_.master = fetch(group_.master(), dtype(), buffer);
  } else {
    open_.master = group_.master().to(dtype()); // itself, if it is that
  }

  if (!is_remote()) {
    if (group_.dtype() != dtype()) {
      open_.low_precision = group_.shard();
    }
  } else if (rounds_in_kernel()) {
    open_.low_precision = buffer->place(numel, group_.dtype());
  }
}

void ShardAccess::begin_gradient(
    const at::Tensor& gradient,
    StateStage::Buffer* buffer) {
  if (!open_.gradient.defined()) {
    open_.gradient = is_remote() ? fetch(gradient, gradient_dtype(), buffer)
                                 : gradient.to(gradient_dtype());
  }
}

void ShardAccess::forget() {
  tensors();
  open_ = {};
}

ShardTensors ShardAccess::tensors() {
  for (PendingTransfer& transfer : arriving_) {
    transfer.wait();
  }
  arriving_.clear();
  return open_;
}

std::vector<PendingTransfer> ShardAccess::begin_return(
    const std::vector<FlatSpan>& written) {
  std::vector<PendingTransfer> leaving;
  const ShardTensors open = std::exchange(open_, {});
  if (written.empty()) {
    return leaving;
  }
  StoredShard* stored = group_.stored_master();
  if (stored != nullptr && stages_master()) {
    leaving.push_back(stored->write(open.master));
  }
  if (!is_remote()) {
    return leaving;
  }
  // Only what was updated: the rest of the buffer means nothing.
  const at::Tensor& from =
      open.low_precision.defined() ? open.low_precision : open.master;
  for (const FlatSpan& span : written) {
    const at::Tensor into = group_.shard().narrow(0, span.begin, span.numel);
    const at::Tensor values = from.narrow(0, span.begin, span.numel);
    if (values.scalar_type() == into.scalar_type()) {
      leaving.push_back(begin_copy(into, values));
    } else {
      into.copy_(values); // rounds
    }
  }
  return leaving;
}

} // namespace tessera
