// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/shard_access.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace tessera::offload {

namespace {

/// Spans may also cover what lies between runs.
bool cover(
    const std::vector<runtime::FlatSpan>& spans,
    const std::vector<runtime::FlatSegment>& segments) {
  return std::all_of(
      segments.begin(),
      segments.end(),
      [&](const runtime::FlatSegment& segment) {
        return std::any_of(
            spans.begin(), spans.end(), [&](const runtime::FlatSpan& span) {
              return span.begin <= segment.shard_offset &&
                     segment.shard_offset + segment.numel <= span.end();
            });
      });
}

} // namespace

void ShardAccess::swap_separate_master(runtime::RestingTensor& master) const {
  std::swap(*shards_.separate_master, master);
}

/// A tensor of [numel] on the site's device for staging.
at::Tensor ShardAccess::place(
    int64_t numel,
    at::ScalarType dtype,
    StagingBuffers::Buffer* buffer) const {
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
    StagingBuffers::Buffer* buffer) {
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

at::Tensor ShardAccess::fetch_master(StagingBuffers::Buffer* buffer) {
  const runtime::RestingTensor& master = this->master();
  if (!site_.streams_master()) {
    return fetch(master, site_.types().master, buffer);
  }
  if (master.in_memory()) {
    return streamed_.open(master);
  }
  const at::Tensor copy = buffer->place(master.numel(), site_.types().master);
  begin_read(master, copy);
  return copy;
}

void ShardAccess::begin_fetch(StagingBuffers::Buffer* buffer) {
  open_.master = fetch_master(buffer);
  if (site_.types().rounds()) {
    const runtime::RestingTensor& shard = shards_.weights;
    open_.low_precision = shard.is_on(site_.device())
                              ? shard.tensor()
                              : place(shard.numel(), shard.dtype(), buffer);
  }
}

void ShardAccess::begin_gradient(
    const runtime::RestingTensor& gradient,
    StagingBuffers::Buffer* buffer) {
  if (!open_.gradient.defined()) {
    // Of another type than the resting one while it is applied in backward.
    open_.gradient =
        fetch(gradient, site_.types().gradient_from(gradient.dtype()), buffer);
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
  const runtime::RestingTensor& master = this->master();
  if (shards_.separate_master != nullptr &&
      !(site_.streams_master() ? master.in_memory()
                               : master.is_on(site_.device()))) {
    leaving.push_back(master.write(open.master));
  }
  if (!shards_.weights.is_on(site_.device())) {
    leaving.push_back(begin_return_of_weights(
        site_.types().rounds() ? open.low_precision : open.master, written));
  }
  return leaving;
}

/// Only what was updated is valid: the rest of `values` may be undefined.
runtime::PendingTransfer ShardAccess::begin_return_of_weights(
    const at::Tensor& values,
    const std::vector<runtime::FlatSpan>& written) {
  const runtime::RestingTensor& shard = shards_.weights;
  if (!site_.types().rounds() || cover(written, shards_.segments)) {
    return shard.write(values);
  }
  const at::Tensor all = shard.load(values.device());
  for (const runtime::FlatSpan& span : written) {
    all.narrow(0, span.begin, span.numel)
        .copy_(values.narrow(0, span.begin, span.numel));
  }
  return shard.write(all);
}

} // namespace tessera::offload
