// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device without memory whose streams know what comes after what, so that
// the order of work can be tested where there is no GPU.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tessera::tests {

inline const c10::Device kFakeDevice(c10::DeviceType::PrivateUse1, 0);

/// One operation that was issued to a stream.
struct FakeWork {
  c10::StreamId stream = 0;
  int64_t number = 0;
};

/// What every stream knows to be done before what is issued to it next: a
/// vector clock, stream by stream the number of the last such operation.
class FakeStreams {
 public:
  using Clock = std::map<c10::StreamId, int64_t>;

  static FakeStreams& instance() {
    static FakeStreams streams;
    return streams;
  }

  void reset() {
    clocks.clear();
    events_made = 0;
    current = 0;
    taken_from_pool = 0;
    asked_for_high_priority.clear();
    is_busy = false;
    memory_users.clear();
  }

  FakeWork issue(const c10::Stream& stream) {
    return {stream.id(), ++clocks[stream.id()][stream.id()]};
  }

  /// Whether `work` is done before what is issued to `stream` next.
  bool is_before(const FakeWork& work, const c10::Stream& stream) {
    return clocks[stream.id()][work.stream] >= work.number;
  }

  std::map<c10::StreamId, Clock> clocks;
  int events_made = 0;
  c10::StreamId current = 0;
  c10::StreamId taken_from_pool = 0;
  std::vector<bool> asked_for_high_priority; ///< per stream of the pool
  /// Streams for which memory of others was kept.
  std::set<c10::StreamId> memory_users;
  /// Whether any stream has work that is not done.
  std::atomic<bool> is_busy = false;
};

inline c10::Stream fake_stream(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, kFakeDevice, id);
}

class FakeDeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return kFakeDevice.type();
  }
  c10::Device exchangeDevice(c10::Device /*device*/) const override {
    return kFakeDevice;
  }
  c10::Device getDevice() const override {
    return kFakeDevice;
  }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }

  c10::Stream getStream(c10::Device /*device*/) const override {
    return fake_stream(FakeStreams::instance().current);
  }
  c10::Stream getStreamFromGlobalPool(
      c10::Device /*device*/,
      bool is_high_priority) const override {
    FakeStreams::instance().asked_for_high_priority.push_back(is_high_priority);
    return fake_stream(100 + FakeStreams::instance().taken_from_pool++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return fake_stream(
        std::exchange(FakeStreams::instance().current, stream.id()));
  }

  void record(
      void** event,
      const c10::Stream& stream,
      const c10::DeviceIndex /*device*/,
      const c10::EventFlag /*flag*/) const override {
    auto& streams = FakeStreams::instance();
    if (*event == nullptr) {
      ++streams.events_made;
      *event = new FakeStreams::Clock;
    }
    *static_cast<FakeStreams::Clock*>(*event) = streams.clocks[stream.id()];
  }
  void block(void* event, const c10::Stream& stream) const override {
    auto& clock = FakeStreams::instance().clocks[stream.id()];
    for (const auto& [id, number] : *static_cast<FakeStreams::Clock*>(event)) {
      clock[id] = std::max(clock[id], number);
    }
  }
  bool queryEvent(void* /*event*/) const override {
    return true;
  }
  bool queryStream(const c10::Stream& /*stream*/) const override {
    return !FakeStreams::instance().is_busy;
  }
  void recordDataPtrOnStream(
      const c10::DataPtr& /*memory*/,
      const c10::Stream& stream) const override {
    FakeStreams::instance().memory_users.insert(stream.id());
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/)
      const noexcept override {
    delete static_cast<FakeStreams::Clock*>(event);
  }
};

} // namespace tessera::tests
