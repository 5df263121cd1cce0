// SPDX-License-Identifier: Apache-2.0
// What LibTorch asks of a device with streams: the current device and streams
// of each thread, and events.
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_memory.h"
#include "support/vdev/vdev_runtime.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <utility>

namespace tessera::tests::vdev {

namespace {

/// As CUDA's: streams of a pool are given out in turn, and again after that.
constexpr int kPoolStreams = 32;
constexpr int kPriorities = 2;

struct ThreadState {
  c10::DeviceIndex device = 0;
  std::array<c10::StreamId, kDevices> streams{};
};

ThreadState& thread_state() {
  static thread_local ThreadState state;
  return state;
}

/// Its mark is replaced when it is recorded again.
struct Event {
  std::shared_ptr<Mark> latest;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return c10::DeviceType::PrivateUse1;
  }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override {
    return device(thread_state().device);
  }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(
        to.index() >= 0 && to.index() < kDevices,
        "vdev: there is no device ",
        to);
    thread_state().device = to.index();
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    thread_state().device = to.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }

  c10::Stream getStream(c10::Device of) const override {
    const c10::DeviceIndex index = resolved(of);
    return stream(index, thread_state().streams.at(static_cast<size_t>(index)));
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return stream(resolved(of), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool is_high_priority)
      const override {
    const c10::DeviceIndex index = resolved(of);
    const auto pool = static_cast<size_t>(is_high_priority ? 1 : 0);
    const int taken = next_.at(static_cast<size_t>(index)).at(pool)++;
    return stream(
        index,
        1 + static_cast<int>(pool) * kPoolStreams + taken % kPoolStreams);
  }
  c10::Stream getNewStream(c10::Device of, int priority) const override {
    return getStreamFromGlobalPool(of, priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(to.device());
    thread_state().streams.at(static_cast<size_t>(to.device_index())) = to.id();
    return before;
  }

  void record(
      void** event,
      const c10::Stream& on,
      const c10::DeviceIndex /*device*/,
      const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    static_cast<Event*>(*event)->latest = Runtime::instance().record(on);
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event != nullptr) {
      Runtime::instance().wait_in_stream(
          waiting, static_cast<Event*>(event)->latest);
    }
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) {
      return true;
    }
    const auto mark = static_cast<Event*>(event)->latest;
    return Runtime::instance().is_done(*mark);
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/)
      const noexcept override {
    delete static_cast<Event*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      // Kept: it may be recorded again by another thread.
      const auto mark = static_cast<Event*>(event)->latest;
      Runtime::instance().synchronize(*mark, "synchronizeEvent");
    }
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex /*device*/)
      const override {
    return 1e3 * (static_cast<Event*>(end)->latest->seconds -
                  static_cast<Event*>(begin)->latest->seconds);
  }

  bool queryStream(const c10::Stream& of) const override {
    return Runtime::instance().is_idle(of);
  }
  void synchronizeStream(const c10::Stream& of) const override {
    Runtime::instance().synchronize(of, "synchronizeStream");
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    Runtime::instance().synchronize_device(index);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& used)
      const override {
    DeviceMemory::instance().recordStream(data, used);
  }

 private:
  static c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device(index), id);
  }
  static c10::DeviceIndex resolved(c10::Device of) {
    return of.has_index() ? of.index() : thread_state().device;
  }

  mutable std::array<std::array<std::atomic<int>, kPriorities>, kDevices>
      next_{};
};

} // namespace

bool has_high_priority(c10::StreamId stream) {
  return stream > kPoolStreams;
}

void install_guard() {
  static const c10::impl::DeviceGuardImplRegistrar kRegistrar(
      c10::DeviceType::PrivateUse1, new Guard);
}

} // namespace tessera::tests::vdev
