// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device of which only the guard exists. Register it in a forked rank, whose
// process ends with the test.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

namespace tessera::tests {

/// Streams and events that do nothing. Thread-safe.
class NullDevice : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit NullDevice(c10::Device current) : current_(current) {}

  c10::DeviceType type() const override {
    return current_.type();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const std::lock_guard lock(mutex_);
    if (std::this_thread::get_id() != first_thread_) {
      set_elsewhere_.insert(device.index());
    }
    return current_;
  }
  c10::Device getDevice() const override {
    return current_;
  }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override {
    return 2;
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(
      c10::Device device,
      bool /*is_high_priority*/) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 1);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {
    ++synchronized;
  }
  void record(
      void** event,
      const c10::Stream& /*stream*/,
      const c10::DeviceIndex /*device*/,
      const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new int;
    }
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override {
    return true;
  }
  void synchronizeEvent(void* /*event*/) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/)
      const noexcept override {
    delete static_cast<int*>(event);
  }

  /// Devices that threads other than the constructing one made current.
  std::set<int> set_elsewhere() const {
    const std::lock_guard lock(mutex_);
    return set_elsewhere_;
  }
  mutable std::atomic<int> synchronized{0}; ///< streams

 private:
  c10::Device current_;
  std::thread::id first_thread_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  mutable std::set<int> set_elsewhere_;
};

} // namespace tessera::tests
