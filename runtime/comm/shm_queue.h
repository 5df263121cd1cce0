// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShmQueue` carries out collectives in issue order, on the waiting threads or
// on a thread of its own.

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
#include <vector>

namespace tessera::runtime {

/// [Note: who moves the bytes] A rank publishes its input when it issues a
/// collective, and consumes the bytes of its peers later. A thread that waits
/// for a collective does the outstanding work itself. While no thread waits, a
/// thread of the queue does it, so that a rank that is busy computing does not
/// delay the others. Both sleep on the doorbell of the rank, which peers ring
/// when they have published or consumed.
///
/// Thread-safe. When one operation fails, all fail, because the ranks are no
/// longer in step.
class ShmQueue {
 public:
  /// @param job_ranks the number of each rank in the job, for messages.
  ShmQueue(
      ShmRegion region,
      ShmPeers peers,
      int rank,
      std::vector<int> job_ranks);
  /// Fails the operations in progress, here and on the peers.
  ~ShmQueue();
  ShmQueue(const ShmQueue&) = delete;
  ShmQueue& operator=(const ShmQueue&) = delete;

  const ShmPort& port() const {
    return port_;
  }

  /// Position of an operation in the queue: the turn in which it ends, and
  /// whether peers must have reached that turn too.
  struct Ticket {
    uint64_t end_turn = 0;
    bool direct = false;
  };

  /// Starts an operation and returns at once.
  /// @throws the error with which the queue has failed.
  Ticket push(std::unique_ptr<ShmOperation> operation);

  /// Whether the operation has ended, successfully or not.
  bool is_over(const Ticket& ticket) const;
  /// The error if it has failed, else null.
  std::exception_ptr failure_of(const Ticket& ticket) const;

  /// Blocks until the operation has ended.
  /// @return false if `deadline` came first.
  bool wait(
      const Ticket& ticket,
      std::chrono::steady_clock::time_point deadline);

  /// Fails the operations in progress and all later ones. Peers see this rank
  /// as gone.
  void abort(const std::string& why);

 private:
  struct Entry {
    std::unique_ptr<ShmOperation> operation;
    uint64_t first_turn = 0;

    uint64_t end_turn() const {
      return first_turn + operation->chunks();
    }
  };
  using Lock = std::unique_lock<std::mutex>;

  bool is_done(const Ticket& ticket) const;
  bool may_publish(const Entry& entry) const;
  void publish();
  bool has_local_work() const;
  /// Does one piece of work, or sleeps until something may have changed, at
  /// most until `deadline`.
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
  std::vector<int> job_ranks_;
  ShmPort port_;
  ShmRank& local_;

  mutable std::mutex mutex_;
  std::condition_variable work_there_;
  std::deque<Entry> entries_; ///< not yet dropped, in issue order
  uint64_t issued_turns_ = 0;
  uint64_t published_turns_ = 0;
  uint64_t consumed_turns_ = 0;
  bool consuming_ = false; ///< a thread is consuming, without the mutex
  int waiting_threads_ = 0;
  bool closing_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

} // namespace tessera::runtime
