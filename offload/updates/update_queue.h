// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateQueue` is a thread that runs one piece of work after the other,
// concurrently with backward.

#include "tessera/runtime/streams/stream_lane.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace tessera::offload {

/// Work runs in the order of submission, in no-grad mode and with a separate
/// lane as the current stream. After work has thrown, no further work is run.
///
/// One thread submits and waits.
class UpdateQueue {
 public:
  /// Identifies a piece of work; 0: none.
  using Ticket = uint64_t;

  /// @param device that has the lane.
  explicit UpdateQueue(c10::Device device);
  /// Completes the work that has begun and drops the rest. An error that was
  /// not reported by wait() is logged.
  ~UpdateQueue();
  UpdateQueue(const UpdateQueue&) = delete;
  UpdateQueue& operator=(const UpdateQueue&) = delete;

  /// From now on all work, that under way too, may use what this thread has
  /// issued to its current stream: the lane waits for it, the host does not.
  void follow_current() {
    lane_.follow_current();
  }

  /// Returns at once; in a dry run, when the work has ended. `work` uses what
  /// follow_current() was called after. What it has captured may be destroyed
  /// on either thread.
  Ticket submit(std::function<void()> work);

  /// Blocks until that work and all work submitted before it has ended.
  /// @throws the first error of any of it, each time.
  void wait(Ticket ticket);
  void wait_all() {
    wait(last_);
  }

  /// A mark after what has been issued to the lane.
  runtime::StreamMarks mark() const {
    return lane_.mark();
  }

 private:
  struct Item {
    Ticket ticket;
    std::function<void()> work;
  };
  void run();

  runtime::StreamLane lane_;
  Ticket last_ = 0; ///< submitted; for the submitting thread
  bool error_was_seen_ = false; ///< for the submitting thread

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_one_;
  std::deque<Item> waiting_;
  Ticket ended_ = 0;
  Ticket failed_ = 0; ///< the first that failed; 0: none
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace tessera::offload
