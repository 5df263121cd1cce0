// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/streams/stream_marks.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace tessera::runtime {

namespace {

/// Unused events. Creating one costs a driver call; recording one again does
/// not. Thread-safe.
class EventPool {
 public:
  std::shared_ptr<c10::Event> take(c10::Device device) {
    std::unique_ptr<c10::Event> event;
    {
      const std::lock_guard lock(mutex_);
      auto& idle = idle_[device];
      if (!idle.empty()) {
        event = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (!event) {
      event = std::make_unique<c10::Event>(device.type());
    }
    return {event.release(), [this, device](c10::Event* used) {
              // Streams that wait for it already wait for its current record.
              const std::lock_guard lock(mutex_);
              idle_[device].emplace_back(used);
            }};
  }

 private:
  struct Order {
    bool operator()(c10::Device a, c10::Device b) const {
      return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
    }
  };
  std::mutex mutex_;
  std::map<c10::Device, std::vector<std::unique_ptr<c10::Event>>, Order> idle_;
};

EventPool& event_pool() {
  // Never destroyed: at exit the device's library may be gone first.
  static auto* const kPool = new EventPool;
  return *kPool;
}

} // namespace

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}

void StreamMarks::add(const c10::Stream& stream) {
  auto event = event_pool().take(stream.device());
  event->record(stream);
  events_.push_back(std::move(event));
}

void StreamMarks::add(const StreamMarks& others) {
  for (const auto& event : others.events_) {
    if (std::find(events_.begin(), events_.end(), event) == events_.end()) {
      events_.push_back(event);
    }
  }
}

void StreamMarks::block(const c10::Stream& stream) const {
  for (const auto& event : events_) {
    event->block(stream);
  }
}

void StreamMarks::block_current(c10::Device device) const {
  if (!empty()) {
    block(*current_stream(device));
  }
}

StreamMarks mark_current(c10::Device device) {
  StreamMarks marks;
  if (const auto stream = current_stream(device)) {
    marks.add(*stream);
  }
  return marks;
}

bool StreamSet::insert(const c10::Stream& stream) {
  if (contains(stream)) {
    return false;
  }
  streams_.push_back(stream);
  return true;
}

bool StreamSet::contains(const c10::Stream& stream) const {
  // Usually there is only one stream, or it is the last one again.
  return std::find(streams_.rbegin(), streams_.rend(), stream) !=
         streams_.rend();
}

StreamMarks StreamSet::mark() const {
  StreamMarks marks;
  for (const c10::Stream& stream : streams_) {
    marks.add(stream);
  }
  return marks;
}

void StreamSet::block(const StreamMarks& marks) const {
  for (const c10::Stream& stream : streams_) {
    marks.block(stream);
  }
}

} // namespace tessera::runtime
