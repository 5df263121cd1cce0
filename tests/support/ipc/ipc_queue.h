// SPDX-License-Identifier: Apache-2.0
#pragma once
// `IpcQueue` has the streams of ranks that share a device carry out collectives
// in order, through buffers that all of these ranks have opened.

#include "support/ipc/stream_driver.h"
#include "tessera/runtime/comm/shm_peers.h"
#include "tessera/runtime/comm/shm_region.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::runtime::ipc {

struct IpcOptions {
  /// Time limit for the other ranks to connect, and for a collective to make
  /// progress while others are behind it.
  std::chrono::milliseconds timeout{};
  /// Bytes of a slot; longer messages take several turns.
  int64_t slot_bytes = int64_t{8} << 20;
};

/// A collective in pieces, each with one turn.
struct IpcPlan {
  using Stream = StreamDriver::Stream;
  using Slots = std::vector<std::byte*>; ///< the slots of a turn, by rank

  ShmMessage message; ///< to detect ranks in different collectives
  uint64_t chunks = 1;
  /// Whether this rank reads a peer's slot in a turn; if it is empty, it waits
  /// for every peer.
  std::function<bool(int peer, uint64_t chunk)> reads;
  /// Issues the copies of this rank's data into its slot.
  std::function<void(Stream, std::byte* slot, uint64_t chunk)> publish;
  /// Issues the operations that read the peers' slots.
  std::function<void(Stream, const Slots& slots, uint64_t chunk)> consume;
};

/// [Note: collectives in the order of streams] Each rank has a staging buffer
/// of kSlots slots on the device, which its peers have opened. Turns count on
/// over all collectives of a group, and turn t uses slot t % kSlots. For a
/// turn, the stream of a rank
///
///   publishes: waits until every peer has consumed turn t - kSlots, copies the
///     rank's data into its slot, and writes t + 1 into its flag `published`;
///   consumes: waits until the peers that it reads from have published turn t,
///     reads their slots (a copy, or a sum in the order of ranks), and writes
///     t + 1 into its flag `consumed`.
///
/// The host only issues this: nothing waits on it, and other streams go on. A
/// rank publishes turn t + 1 before it consumes turn t. There is no circle: all
/// ranks issue the same sequence, and each step waits for steps that are
/// earlier in it. The collectives of one group run one after the other; on
/// another stream than the one before, a collective first waits for that one's
/// end, which is a flag too.
///
/// Flags lie in pages of the group's ShmRegion, one row for each rank that
/// waits: a peer writes its progress into the rows of all others. A rank can
/// thus release its own waits without a peer reading what is not there.
///
/// [Note: a stream that waits for a lost rank] A thread of the queue looks at
/// the peers' processes ten times a second. When one is gone or has failed, or
/// nothing has moved for the time limit, the queue fails: it notes the reason
/// in the region, marks itself as failed, so that all ranks fail, and then
/// writes values into its own row that end every wait of its streams, over and
/// over until these have run dry. What they compute from then on is garbage;
/// the next collective, and every wait for an earlier one, throws the reason,
/// before anything that the ranks do together is complete.
///
/// Thread-safe.
class IpcQueue {
 public:
  static constexpr int kSlots = 2;
  /// Most ranks of a group: their flags share a slot of the region.
  static constexpr int kMostRanks = 32;

  /// Collective; blocks until all ranks are connected.
  /// @throws tessera::Error on every rank, with the same reason.
  IpcQueue(
      c10d::Store& store,
      int rank,
      int size,
      const IpcOptions& options,
      std::unique_ptr<StreamDriver> driver);
  /// Waits until the collectives that were issued have ended here and peers
  /// have read what this rank published, or the queue has failed.
  ~IpcQueue();
  IpcQueue(const IpcQueue&) = delete;
  IpcQueue& operator=(const IpcQueue&) = delete;

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  int64_t slot_bytes() const {
    return options_.slot_bytes;
  }
  StreamDriver& driver() const {
    return *driver_;
  }

  /// Issues a collective on the current stream; nothing, when the queue has
  /// failed or a peer has issued another collective in its place.
  /// @return the turn in which it ends, for the functions below.
  uint64_t issue(const IpcPlan& plan);

  /// Tells all ranks `numbers`, one for each rank. Collective; blocks the host
  /// until all have called it, but for no stream.
  /// @return the numbers of all ranks, by rank; none when the queue has failed.
  std::vector<std::vector<int64_t>> exchange_all(
      const std::vector<int64_t>& numbers);

  bool has_failed() const;
  /// Whether a collective has ended, successfully or not.
  bool is_over(uint64_t end_turn) const;
  /// The error if it has failed, else null.
  std::exception_ptr failure_of(uint64_t end_turn) const;
  /// Has the current stream wait for a collective that was issued.
  void follow(uint64_t end_turn);
  /// Blocks the host until a collective has ended.
  /// @return false if `deadline` came first.
  bool wait(uint64_t end_turn, std::chrono::steady_clock::time_point deadline)
      const;

  /// Fails the collectives in progress, here and on the peers.
  void abort(const std::string& why);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct PeerFlags {
    StreamFlag published;
    StreamFlag consumed;
  };
  /// Values of ShmRank::left.
  enum Left : uint32_t { kHere, kLeft, kFailed };

  /// Progress of `peer`, for the waits of `waiter`.
  PeerFlags& flags(int waiter, int peer) const;
  /// Written by this rank's streams at the end of each turn.
  StreamFlag& done() const {
    return flags(rank_, rank_).consumed;
  }
  uint64_t ended_turns() const;
  /// Whether streams have nothing left to do.
  bool is_dry() const {
    return ended_turns() == issued_turns_;
  }
  std::byte* slot(int rank, uint64_t turn) const;
  void connect(c10d::Store& store);
  void disconnect() noexcept;
  void compare_with_peers(const ShmMessage& message);
  void publish(
      StreamDriver::Stream stream,
      const IpcPlan& plan,
      uint64_t turn,
      uint64_t chunk);
  void consume(
      StreamDriver::Stream stream,
      const IpcPlan& plan,
      uint64_t turn,
      uint64_t chunk);
  void fail(const std::string& reason);
  void release_waits();
  /// Why the queue cannot go on; empty if it can.
  std::string trouble(std::chrono::steady_clock::duration without_progress);
  void watch();

  IpcOptions options_;
  int rank_;
  int size_;
  std::vector<int> job_ranks_; ///< the number of each rank in the job
  std::unique_ptr<StreamDriver> driver_;
  ShmRegion region_;
  ShmPeers peers_;
  std::vector<std::byte*> staging_; ///< by rank

  bool flags_registered_ = false;

  // One thread at a time issues, which may block while a stream's queue is
  // full; the watcher does not need this mutex.
  std::mutex issue_mutex_;
  std::atomic<uint64_t> issued_turns_ = 0;
  uint64_t issued_ = 0; ///< collectives
  uint64_t exchanges_ = 0; ///< calls of exchange_all()
  StreamDriver::Stream last_stream_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable closing_there_;
  bool closing_ = false;
  std::exception_ptr failure_;
  /// Turns that had ended when the queue failed.
  uint64_t sound_turns_ = 0;
  std::thread watcher_;
};

} // namespace tessera::runtime::ipc
