// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/span_recorder.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

namespace tessera::runtime {

namespace {

/// Of the recorder that is current, and of its spans.
std::mutex& recorder_mutex() {
  static std::mutex mutex;
  return mutex;
}

TraceLane& lane_of_collectives() {
  static thread_local TraceLane lane = TraceLane::kCollectives;
  return lane;
}

} // namespace

std::atomic<SpanRecorder*> SpanRecorder::current_{nullptr};

const char* name_of(TraceLane lane) {
  constexpr std::array<const char*, kTraceLanes> kNames{
      "steps",
      "compute",
      "operators",
      "waits",
      "unshard",
      "reduce",
      "collectives",
      "D2H",
      "H2D",
      "NVMe",
      "optimizer",
      "optimizer (CPU threads)",
      "data"};
  return kNames.at(static_cast<size_t>(lane));
}

SpanRecorder::SpanRecorder() {
  SpanRecorder* none = nullptr;
  TESSERA_CHECK(
      current_.compare_exchange_strong(none, this),
      "a step is profiled already; profile one engine of a process at a time.");
}

SpanRecorder::~SpanRecorder() {
  const std::lock_guard lock(recorder_mutex());
  current_ = nullptr;
}

void SpanRecorder::add(RecordedSpan span) {
  const std::lock_guard lock(recorder_mutex());
  if (SpanRecorder* recorder = current()) {
    recorder->spans_.push_back(std::move(span));
  }
}

void SpanRecorder::watch(
    TraceLane lane,
    std::string_view name,
    int64_t bytes,
    std::function<bool()> is_done) {
  const std::lock_guard lock(recorder_mutex());
  if (SpanRecorder* recorder = current()) {
    const StreamTime now = StreamTime::now(c10::DeviceType::CPU);
    recorder->watched_.push_back(
        {{lane, std::string(name), now, now, false, bytes},
         std::move(is_done)});
  }
}

void SpanRecorder::poll() {
  const std::lock_guard lock(recorder_mutex());
  std::erase_if(watched_, [this](Watched& watched) {
    if (!watched.is_done()) {
      return false;
    }
    watched.span.end = StreamTime::now(c10::DeviceType::CPU);
    spans_.push_back(std::move(watched.span));
    return true;
  });
}

std::vector<RecordedSpan> SpanRecorder::take() {
  const std::lock_guard lock(recorder_mutex());
  return std::exchange(spans_, {});
}

void TraceSpan::open(
    TraceLane lane,
    std::string_view name,
    c10::Device device,
    int64_t bytes) {
  is_open_ = true;
  device_ = device;
  span_ = {
      lane,
      std::string(name),
      StreamTime::now(device),
      {},
      !device.is_cpu(),
      bytes};
  if (SpanRecorder* recorder = SpanRecorder::current()) {
    recorder->on_begin_span(lane);
  }
}

void TraceSpan::close() noexcept {
  try {
    span_.end = StreamTime::now(device_);
    if (SpanRecorder* recorder = SpanRecorder::current()) {
      recorder->on_end_span(span_.lane);
    }
    SpanRecorder::add(std::move(span_));
  } catch (...) {
    // The device has failed; its next user gets the error.
  }
}

TraceLaneScope::TraceLaneScope(TraceLane lane)
    : before_(std::exchange(lane_of_collectives(), lane)) {}

TraceLaneScope::~TraceLaneScope() {
  lane_of_collectives() = before_;
}

TraceLane TraceLaneScope::current() {
  return lane_of_collectives();
}

} // namespace tessera::runtime
