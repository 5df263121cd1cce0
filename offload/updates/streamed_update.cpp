// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/streamed_update.h"

#include "tessera/offload/options/offload_options.h"
#include "tessera/runtime/core/round_up.h"

#include <algorithm>

namespace tessera::offload {

namespace {

/// Alignment of tensors in a buffer, in bytes.
constexpr int64_t kSegmentAlignment = 256;
static_assert(
    OffloadOptions::kMinStageBytes >=
    4096 * StreamedUpdate::kBuffers); // a page of memory for each
/// A run is cut at multiples of this many elements.
constexpr int64_t kCut = 16;

/// A run's master and state.
constexpr int64_t kMostPassing = 1 + runtime::UpdateTensors::kStates;

/// The tensors of a run that are streamed, in their order in a buffer.
std::vector<const at::Tensor*> passing(const StreamedSegment& segment) {
  std::vector<const at::Tensor*> all;
  if (segment.master_on_host) {
    all.push_back(&segment.tensors.master);
  }
  const auto states = segment.tensors.states();
  all.insert(all.end(), states.begin(), states.end());
  return all;
}

/// How many of the last `rest` elements of a run fit into `available_bytes`
/// bytes.
int64_t fitting(
    const StreamedSegment& segment,
    int64_t rest,
    int64_t available_bytes) {
  int64_t per_element = 0;
  for (const at::Tensor* tensor : passing(segment)) {
    if (tensor->defined()) {
      per_element += static_cast<int64_t>(tensor->itemsize());
      available_bytes -= kSegmentAlignment;
    }
  }
  if (per_element == 0) {
    return rest;
  }
  const int64_t most = std::max<int64_t>(available_bytes, 0) / per_element;
  return most >= rest ? rest : most / kCut * kCut;
}

} // namespace

StreamedUpdate::StreamedUpdate(c10::Device device, int64_t limit_bytes)
    : device_(device),
      limit_bytes_(limit_bytes),
      arriving_(device, runtime::LanePriority::kLow),
      updating_(device, runtime::LanePriority::kLow),
      leaving_(device, runtime::LanePriority::kLow) {}

StreamedUpdate::~StreamedUpdate() {
  wait();
}

int64_t StreamedUpdate::bytes_for(
    int64_t bytes,
    int64_t segments,
    int64_t limit_bytes) {
  // All tensors of every run are aligned.
  const int64_t full = runtime::round_up(bytes, kSegmentAlignment) +
                       kMostPassing * kSegmentAlignment * segments;
  const int64_t limit =
      limit_bytes / kBuffers / kSegmentAlignment * kSegmentAlignment;
  return bytes > 0 ? kBuffers * std::min(full, limit) : 0;
}

void StreamedUpdate::need(int64_t bytes, int64_t segments) {
  buffer_bytes_ = std::max(
      buffer_bytes_, bytes_for(bytes, segments, limit_bytes_) / kBuffers);
}

void StreamedUpdate::allocate(MemoryLedger& ledger) {
  if (buffer_bytes_ == 0) {
    return;
  }
  for (Buffer& buffer : buffers_) {
    buffer.memory = ledger.allocate(
        MemoryPurpose::kStaging, buffer_bytes_, at::kByte, device_);
    buffer.free = runtime::mark_current(device_);
  }
}

StreamedChunk StreamedUpdate::place(
    const StreamedSegment& segment,
    int64_t begin,
    int64_t numel,
    int64_t& used,
    const at::Tensor& memory,
    std::vector<Passage>& passages) const {
  const auto stretch = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, begin, numel) : at::Tensor();
  };
  const auto pass = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return at::Tensor();
    }
    const int64_t bytes = numel * static_cast<int64_t>(tensor.itemsize());
    const at::Tensor on_device =
        memory.narrow(0, used, bytes).view(tensor.scalar_type());
    used += runtime::round_up(bytes, kSegmentAlignment);
    passages.push_back({stretch(tensor), on_device});
    return on_device;
  };
  const runtime::UpdateTensors& from = segment.tensors;
  StreamedChunk chunk;
  chunk.begin = begin;
  chunk.tensors.master =
      segment.master_on_host ? pass(from.master) : stretch(from.master);
  for (size_t i = 0; i < runtime::UpdateTensors::kStates; ++i) {
    *chunk.tensors.states()[i] = pass(*from.states()[i]);
  }
  chunk.tensors.grad = stretch(from.grad);
  chunk.tensors.low_precision = stretch(from.low_precision);
  return chunk;
}

void StreamedUpdate::run(
    const std::vector<StreamedSegment>& segments,
    const Update& update) {
  updating_.follow_current();
  size_t r = 0;
  int64_t begin = 0;
  while (r < segments.size()) {
    Buffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    std::vector<StreamedChunk> chunks;
    std::vector<Passage> passages;
    int64_t used = 0;
    while (r < segments.size()) {
      const int64_t rest = segments[r].tensors.grad.numel() - begin;
      const int64_t numel = fitting(segments[r], rest, buffer_bytes_ - used);
      if (numel > 0) {
        chunks.push_back(
            place(segments[r], begin, numel, used, buffer.memory, passages));
        chunks.back().segment = r;
      }
      begin += numel;
      if (numel < rest) {
        break; // the buffer is full
      }
      ++r;
      begin = 0;
    }
    if (chunks.empty()) {
      continue;
    }
    arriving_.wait_for(buffer.free);
    {
      const runtime::StreamLane::Scope scope(arriving_);
      for (const Passage& passage : passages) {
        passage.on_device.copy_(passage.on_host, /*non_blocking=*/true);
      }
    }
    updating_.wait_for(arriving_.mark());
    {
      const runtime::StreamLane::Scope scope(updating_);
      update(chunks);
    }
    leaving_.wait_for(updating_.mark());
    {
      const runtime::StreamLane::Scope scope(leaving_);
      for (const Passage& passage : passages) {
        passage.on_host.copy_(passage.on_device, /*non_blocking=*/true);
      }
    }
    buffer.free = leaving_.mark();
  }
  if (updating_.is_real()) {
    hold(segments);
  }
}

/// Keeps tensors that may be copies for this update only, because allocators do
/// not know that a lane uses them.
void StreamedUpdate::hold(const std::vector<StreamedSegment>& segments) {
  while (!held_.empty() && held_.front().done.query()) {
    held_.pop_front();
  }
  Held held{c10::Event(device_.type()), {}};
  for (const StreamedSegment& segment : segments) {
    const runtime::UpdateTensors& tensors = segment.tensors;
    held.tensors.insert(
        held.tensors.end(),
        {tensors.master, tensors.grad, tensors.low_precision});
  }
  const runtime::StreamLane::Scope scope(updating_);
  held.done.record(*runtime::current_stream(device_));
  held_.push_back(std::move(held));
}

at::Tensor StreamedUpdate::open(const runtime::RestingTensor& tensor) const {
  const runtime::StreamLane::Scope scope(arriving_);
  return tensor.tensor_on_stream(device_);
}

void StreamedUpdate::note_use(const runtime::RestingTensor& tensor) const {
  const runtime::StreamLane::Scope scope(leaving_);
  tensor.used_on_current_stream(device_);
}

void StreamedUpdate::wait() const {
  leaving_.synchronize();
}

} // namespace tessera::offload
