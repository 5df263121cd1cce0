// SPDX-License-Identifier: Apache-2.0
#pragma once
// Carries collectives out in issue order, in whichever thread has time.

#include "tessera/runtime/comm/shm_operation.h"
#include "tessera/runtime/comm/shm_peers.h"
#include "tessera/runtime/comm/shm_region.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace tessera {

/// [Note: who moves the bytes] A rank shows its input when it issues a
/// collective, and takes its peers' bytes later. Whoever waits for a collective
/// does the outstanding work itself. While nobody waits, a thread of the queue
/// does, so that a rank that computes keeps no other one waiting. Both sleep on
/// the rank's doorbell, which peers ring when they have shown or taken
/// something.
///
/// Thread-safe. A failure of one operation is one of all: the ranks are no
/// longer in step.
class ShmQueue {
 public:
  ShmQueue(ShmRegion region, ShmPeers peers, int rank, int ranks);
  /// Fails what is under way, here and on the peers.
  ~ShmQueue();
  ShmQueue(const ShmQueue&) = delete;
  ShmQueue& operator=(const ShmQueue&) = delete;

  const ShmPort& port() const {
    return port_;
  }

  /// An operation's place: its end, and whether peers must have come there too.
  struct Ticket {
    uint64_t end_turn = 0;
    bool direct = false;
  };

  /// Starts an operation and returns at once.
  /// @throws what the queue has failed with.
  Ticket push(std::unique_ptr<ShmOperation> operation);

  /// Whether it is over, well or not.
  bool is_over(const Ticket& ticket) const;
  /// Why, when not well; null while it is under way.
  std::exception_ptr failure_of(const Ticket& ticket) const;

  /// Blocks until it is over. @return false when `deadline` came first.
  bool wait(
      const Ticket& ticket,
      std::chrono::steady_clock::time_point deadline);

  /// Fails what is under way and all that comes. Peers find this rank gone.
  void abort(const std::string& why);

 private:
  struct Entry {
    std::unique_ptr<ShmOperation> operation;
    uint64_t first_turn = 0;

    uint64_t end_turn() const {
      return first_turn + operation->pieces();
    }
  };
  using Lock = std::unique_lock<std::mutex>;

  bool is_done(const Ticket& ticket) const;
  bool may_publish(const Entry& entry) const;
  void publish();
  bool has_local_work() const;
  /// Takes a step, or sleeps until something may have changed, no longer than
  /// until `deadline`.
  void advance(
      Lock& lock,
      uint64_t awaited_turn,
      std::chrono::steady_clock::time_point deadline);
  void consume(Lock& lock);
  void sleep(
      Lock& lock,
      uint32_t doorbell,
      uint64_t awaited_turn,
      std::chrono::steady_clock::time_point deadline);
  void look_for_lost_peers(uint64_t awaited_turn, bool processes);
  void drop_finished();
  uint64_t taken_by_all() const;
  void ring_peers();
  void fail_for_all(const std::string& reason);
  void fail(std::exception_ptr why);
  void run();

  ShmRegion region_;
  ShmPeers peers_;
  ShmPort port_;
  ShmRank& own_;

  mutable std::mutex mutex_;
  std::condition_variable work_there_;
  std::deque<Entry> entries_; ///< not yet dropped, in issue order
  uint64_t issued_turns_ = 0;
  uint64_t published_turns_ = 0;
  uint64_t consumed_turns_ = 0;
  bool consuming_ = false; ///< some thread does, without the mutex
  int waiting_threads_ = 0;
  bool closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

} // namespace tessera
