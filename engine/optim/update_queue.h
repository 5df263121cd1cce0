// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread that does one piece of work after the other, beside backward.

#include "tessera/runtime/memory/stream_lane.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace tessera {

/// Work runs in the order of its submission, without gradients being recorded
/// and with a lane of its own as the current stream, which comes after what the
/// submitting thread has issued to its own. After work that has thrown none is
/// done any more.
///
/// One thread submits and waits.
class UpdateQueue {
 public:
  /// Of a piece of work; 0: of none.
  using Ticket = uint64_t;

  /// @param device that has the lane.
  explicit UpdateQueue(c10::Device device);
  /// Ends the work that has begun and drops the rest. An error that nobody has
  /// waited for goes to the log.
  ~UpdateQueue();
  UpdateQueue(const UpdateQueue&) = delete;
  UpdateQueue& operator=(const UpdateQueue&) = delete;

  /// Returns at once. What `work` has captured ends on either thread.
  Ticket submit(std::function<void()> work);

  /// Blocks until that work and what was submitted before it has ended.
  /// @throws what some of it has thrown, the first of it, each time.
  void wait(Ticket ticket);
  void wait_all() {
    wait(last_);
  }

  /// Marks what has been issued to the lane.
  StreamMarks mark() const {
    return lane_.mark();
  }

 private:
  struct Item {
    Ticket ticket;
    std::function<void()> work;
  };
  void run();

  StreamLane lane_;
  Ticket last_ = 0; ///< submitted; of the submitting thread
  bool error_was_seen_ = false; ///< of the submitting thread

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_one_;
  std::deque<Item> waiting_;
  Ticket ended_ = 0;
  Ticket failed_ = 0; ///< the first one that did, 0: none
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace tessera
