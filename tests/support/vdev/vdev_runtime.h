// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Runtime` is the virtual asynchronous device: streams are queues of commands
// in host memory, which one scheduler runs in an order that a test chooses.
// Whether two commands that touch the same memory are ordered is checked when
// the second one is issued, so that a missing wait is found in any order of
// execution.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tests::vdev {

inline constexpr int kDevices = 2;

inline c10::Device device(c10::DeviceIndex index = 0) {
  return {c10::DeviceType::PrivateUse1, index};
}

/// When commands run.
struct Policy {
  enum class Order {
    kEager, ///< as soon as they are issued
    kLazy, ///< when the host waits for them, and no other ones then
    kRandom, ///< some when they are issued, in an order given by `seed`
    kStarve, ///< as kEager, but those of stream `starved` as late as possible
  };
  Order order = Order::kEager;
  uint64_t seed = 0;
  c10::StreamId starved = 0;

  std::string name() const;
};

/// Bytes [begin, end) of memory.
struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

struct Access {
  Range range;
  bool is_write = false;
};

/// What is known to have been done: by stream, the number of its last command.
using Clock = std::map<int, uint64_t>;

/// One command of a stream.
struct Command {
  std::string name; ///< of the operator, for errors
  std::vector<Access> accesses;
  /// Called without vdev memory of its own: pointers were captured at issue.
  /// @param nudge whether the scheduler has nothing else to do.
  /// @return false: it has begun but is incomplete; it is called again.
  std::function<bool(bool nudge)> run;
  Clock also_after; ///< orders it after more than its stream does
  bool may_throw = true; ///< false: races are only noted
};

/// A point in the work of a stream. An event is recorded again by making a new
/// one, which changes nothing for those who wait for the old one.
struct Mark {
  int stream = 0;
  Clock clock;
  bool done = false;
  double seconds = 0; ///< when it was reached
};

struct Counters {
  int64_t commands = 0;
  int64_t synchronizations = 0; ///< of the host with a stream, event or device
  int64_t pageable_copies = 0; ///< between host and device
};

/// The command that makes freed memory NaN, which no device has.
inline constexpr const char* kRelease = "the release of memory";

/// Streams of different devices have different numbers: this many for each.
inline constexpr int kKeysPerDevice = 1 << 16;

/// What was issued, a line each, by stream: commands with their memory, marks,
/// and waits with the stream that is waited for. Memory that was allocated
/// since the trace began has the number of its allocation in place of an
/// address: which of the free blocks an allocator takes depends on the order in
/// which they were freed, and a graph that is captured has a pool of its own.
using Trace = std::map<int, std::vector<std::string>>;

/// The devices of this process. Thread-safe.
class Runtime {
 public:
  static Runtime& instance();

  void set_policy(const Policy& policy);

  /// Appends a command to a stream.
  /// @throws c10::Error when it is not ordered after another one that uses the
  ///   same memory, with the names of both.
  void issue(const c10::Stream& stream, Command command);

  std::shared_ptr<Mark> record(const c10::Stream& stream);
  void wait_in_stream(
      const c10::Stream& stream,
      const std::shared_ptr<Mark>& mark);

  bool is_done(const Mark& mark);
  bool is_idle(const c10::Stream& stream);
  /// The host waits. @param reason for counters().
  void synchronize(const Mark& mark, const std::string& reason);
  void synchronize(const c10::Stream& stream, const std::string& reason);
  void synchronize_device(c10::DeviceIndex index);

  /// Forgets who used the memory: it is another buffer now.
  void forget(const Range& range);
  /// The name of a command that uses the memory and that the host does not know
  /// to be done; empty if there is none.
  std::string pending_use(const Range& range);

  Counters counters();
  void count_pageable_copy();
  /// Reasons of the host's waits, with how often.
  std::map<std::string, int64_t> synchronization_reasons();

  /// Notes what is issued until end_trace().
  void begin_trace();
  Trace end_trace();
  /// For the allocators.
  void note_allocation(const Range& range);

  /// Notes something that the product must not do, where it cannot be thrown.
  void note_violation(const std::string& text);
  std::vector<std::string> violations();

  /// From now on a thread runs commands while the host neither issues nor waits
  /// for any, as a device does: other ranks may wait for this one.
  void run_in_background();

  std::recursive_mutex& mutex() {
    return mutex_;
  }

 private:
  struct Item {
    std::string name;
    std::function<bool(bool)> run; ///< null for marks and waits
    std::shared_ptr<Mark> recorded;
    std::shared_ptr<Mark> awaited;
  };
  struct Queue {
    int key = 0;
    std::deque<Item> items;
    Clock clock;
    uint64_t issued = 0;
    bool busy = false; ///< its first command has begun and is incomplete
  };
  struct Use {
    int stream = -1;
    uint64_t number = 0;
    std::string name;
  };
  struct Segment {
    uintptr_t end = 0;
    Use writer;
    std::vector<Use> readers; ///< the last one of each stream
  };
  enum class Step { kRan, kBlocked, kBusy, kEmpty };
  using Lock = std::unique_lock<std::recursive_mutex>;

  Runtime() = default;

  Queue& queue_of(const c10::Stream& stream);
  void push(Queue& queue, Item item);
  std::optional<std::string> race_of(
      const Queue& queue,
      const Clock& clock,
      const Command& command);
  void note_uses(const Queue& queue, const Command& command);
  void note_in_trace(const Queue& queue, const std::string& line);
  std::string line_of(const Command& command) const;
  void split(uintptr_t at);
  Step step(Queue& queue, bool nudge);
  void run_after_issue();
  bool run_everything(bool nudge);
  /// Runs one command of those that `queue` needs, itself included.
  Step step_towards(Queue& queue, int depth);
  bool step_for(Queue& queue, bool nudge);
  void drive(Lock& lock, Queue& queue, const std::function<bool()>& is_over);
  void throw_failure();

  std::recursive_mutex mutex_;
  Policy policy_;
  std::mt19937_64 random_;
  std::map<int, Queue> queues_;
  Clock host_;
  std::map<uintptr_t, Segment> memory_; ///< by first byte
  Counters counters_;
  std::map<std::string, int64_t> reasons_;
  std::vector<std::string> violations_;
  std::optional<Trace> trace_;
  struct Allocation {
    uintptr_t end = 0;
    size_t number = 0;
  };
  std::map<uintptr_t, Allocation> allocations_; ///< since the trace began
  size_t allocated_ = 0;
  std::string failure_; ///< of a command, thrown by the next wait of the host
  bool runs_in_background_ = false;
  uint64_t activity_ = 0;
};

} // namespace tessera::tests::vdev
