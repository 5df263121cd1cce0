// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/shard_access.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace tessera::engine {

namespace {

/// Spans may also cover what lies between runs.
bool cover(
    const std::vector<runtime::FlatSpan>& spans,
    const std::vector<runtime::FlatRun>& runs) {
  return std::all_of(
      runs.begin(), runs.end(), [&](const runtime::FlatRun& run) {
        return std::any_of(
            spans.begin(), spans.end(), [&](const runtime::FlatSpan& span) {
              return span.begin <= run.shard_offset &&
                     run.shard_offset + run.numel <= span.end();
            });
      });
}

} // namespace

UpdateSite::UpdateSite(
    const sharding::PageSpec& page,
    const sharding::ShardTiers& tiers,
    bool on_device)
    : page_(page),
      tiers_(tiers),
      on_device_(on_device),
      device_(on_device ? page.device : at::Device(at::kCPU)) {
  TESSERA_CHECK(
      at::isFloatingType(page.dtype),
      "optimizer: weights of type {} in group '{}' cannot be trained; freeze them (requires_grad_(false)) before wrap.",
      page.dtype,
      page.name);
}

at::ScalarType UpdateSite::gradient_dtype() const {
  const at::ScalarType gradient = page_.gradients.shard;
  return is_low_precision(gradient) ? gradient : dtype();
}

int64_t UpdateSite::stage_bytes() const {
  const int64_t numel = page_.layout.shard_numel();
  const auto bytes = [&](bool staged, at::ScalarType type) {
    return staged ? StateStage::Buffer::bytes_for(numel, type) : 0;
  };
  if (!device_.is_cpu()) {
    return bytes(
        streams_master() && tiers_.state == MemoryTier::kNvme, dtype());
  }
  const auto is_here = [&](MemoryTier tier) {
    return tier == MemoryTier::kHost ||
           (tier == MemoryTier::kDevice && page_.device.is_cpu());
  };
  const MemoryTier master =
      page_.has_own_master ? tiers_.state : tiers_.parameters;
  return bytes(!is_here(master), dtype()) +
         bytes(!is_here(tiers_.gradients), gradient_dtype()) +
         bytes(rounds() && !is_here(tiers_.parameters), page_.dtype);
}

/// A tensor of [numel] on the site's device for staging.
at::Tensor ShardAccess::place(
    int64_t numel,
    at::ScalarType dtype,
    StateStage::Buffer* buffer) const {
  return site_.device().is_cpu()
             ? buffer->place(numel, dtype)
             : at::empty(
                   {numel},
                   at::TensorOptions().dtype(dtype).device(site_.device()));
}

/// The tensor itself if possible, else a tensor to copy it to.
at::Tensor ShardAccess::fetch(
    const runtime::RestingTensor& from,
    at::ScalarType dtype,
    StateStage::Buffer* buffer) {
  if (from.is_on(site_.device())) {
    return from.tensor().to(dtype); // itself, if it is that
  }
  const at::Tensor copy = place(from.numel(), dtype, buffer);
  if (from.dtype() == dtype) {
    begin_read(from, copy);
  } else {
    copy.copy_(from.load()); // converts
  }
  return copy;
}

void ShardAccess::begin_read(
    const runtime::RestingTensor& from,
    const at::Tensor& into) {
  (into.is_cpu() ? arriving_on_host_ : arriving_on_device_)
      .push_back(from.read(into));
}

at::Tensor ShardAccess::fetch_master(StateStage::Buffer* buffer) {
  const runtime::RestingTensor& master = group_.master();
  if (!site_.streams_master()) {
    return fetch(master, site_.dtype(), buffer);
  }
  if (master.in_memory()) {
    return streamed_.open(master);
  }
  const at::Tensor copy = buffer->place(master.numel(), site_.dtype());
  begin_read(master, copy);
  return copy;
}

void ShardAccess::begin_fetch(StateStage::Buffer* buffer) {
  group_.check_values();
  open_.master = fetch_master(buffer);
  if (site_.rounds()) {
    const runtime::RestingTensor& shard = group_.shard();
    open_.low_precision = shard.is_on(site_.device())
                              ? shard.tensor()
                              : place(shard.numel(), shard.dtype(), buffer);
  }
}

void ShardAccess::begin_gradient(
    const runtime::RestingTensor& gradient,
    StateStage::Buffer* buffer) {
  if (!open_.gradient.defined()) {
    // Of another type than the shard's while bucket_.is_applying().
    open_.gradient = fetch(
        gradient,
        is_low_precision(gradient.dtype()) ? gradient.dtype() : site_.dtype(),
        buffer);
  }
}

void ShardAccess::forget() {
  tensors();
  open_ = {};
}

ShardTensors ShardAccess::tensors() {
  runtime::wait_all(arriving_on_host_);
  for (runtime::PendingTransfer& transfer : arriving_on_device_) {
    transfer.release_issued();
  }
  arriving_on_device_.clear();
  return open_;
}

std::vector<runtime::PendingTransfer> ShardAccess::begin_return(
    const std::vector<runtime::FlatSpan>& written) {
  std::vector<runtime::PendingTransfer> leaving;
  const ShardTensors open = std::exchange(open_, {});
  if (written.empty()) {
    return leaving;
  }
  const runtime::RestingTensor& master = group_.master();
  if (group_.has_own_master() &&
      !(site_.streams_master() ? master.in_memory()
                               : master.is_on(site_.device()))) {
    leaving.push_back(master.write(open.master));
  }
  if (!group_.shard().is_on(site_.device())) {
    leaving.push_back(begin_return_of_shard(
        site_.rounds() ? open.low_precision : open.master, written));
  }
  return leaving;
}

/// Only what was updated is valid: the rest of `values` may be undefined.
runtime::PendingTransfer ShardAccess::begin_return_of_shard(
    const at::Tensor& values,
    const std::vector<runtime::FlatSpan>& written) {
  const runtime::RestingTensor& shard = group_.shard();
  if (!site_.rounds() || cover(written, bucket_.own_runs())) {
    return shard.write(values);
  }
  const at::Tensor all = shard.load(values.device());
  for (const runtime::FlatSpan& span : written) {
    all.narrow(0, span.begin, span.numel)
        .copy_(values.narrow(0, span.begin, span.numel));
  }
  return shard.write(all);
}

} // namespace tessera::engine
