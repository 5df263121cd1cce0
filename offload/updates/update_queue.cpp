// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/update_queue.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/profile/span_recorder.h"

#include <c10/core/GradMode.h>

#include <utility>

namespace tessera::offload {

UpdateQueue::UpdateQueue(c10::Device device)
    : lane_(device, runtime::LanePriority::kLow), thread_([this] { run(); }) {}

UpdateQueue::~UpdateQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  lane_.wait_before_memory_is_freed(); // of its work
  if (error_ == nullptr || error_was_seen_) {
    return;
  }
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    log_error("an optimizer update failed in the background: {}", error.what());
  }
}

UpdateQueue::Ticket UpdateQueue::submit(std::function<void()> work) {
  const Ticket ticket = ++last_;
  if (runtime::dry_allocation().heap) {
    // A dry run counts what its own thread does.
    const runtime::StreamLane::Scope on_lane(lane_);
    const c10::NoGradGuard no_grad;
    work();
    const std::lock_guard lock(mutex_);
    ended_ = ticket;
    return ticket;
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({ticket, std::move(work)});
  }
  wake_.notify_one();
  return ticket;
}

void UpdateQueue::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  ended_one_.wait(lock, [&] { return ended_ >= ticket; });
  if (failed_ != 0 && failed_ <= ticket) {
    error_was_seen_ = true;
    std::rethrow_exception(error_);
  }
}

void UpdateQueue::run() {
  const runtime::StreamLane::Scope on_lane(lane_);
  const c10::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) {
      return;
    }
    Item item = std::move(waiting_.front());
    waiting_.pop_front();
    const bool skipped = failed_ != 0;
    lock.unlock();
    std::exception_ptr error;
    if (!skipped) {
      try {
        const runtime::TraceSpan span(
            runtime::TraceLane::kUpdates, "update beside the step");
        item.work();
      } catch (...) {
        error = std::current_exception();
      }
    }
    item.work = nullptr; // destroys its captures before a waiter proceeds
    lock.lock();
    if (error != nullptr) {
      failed_ = item.ticket;
      error_ = error;
    }
    ended_ = item.ticket;
    ended_one_.notify_all();
  }
}

} // namespace tessera::offload
