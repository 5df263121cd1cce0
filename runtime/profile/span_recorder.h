// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SpanRecorder` records what runs when, for a trace; `TraceSpan` marks it in
// the code. Without a recorder, a span costs one load.

#include "tessera/runtime/streams/stream_time.h"

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::runtime {

/// What runs, one line of a trace each.
enum class TraceLane {
  kSteps, ///< phases of a step
  kCompute, ///< of layers
  kOperators, ///< of the CPU
  kWaits, ///< computation waits for transfers
  kUnshard, ///< all-gathers of parameters
  kReduce, ///< reductions of gradients
  kCollectives, ///< all other collectives
  kToHost,
  kToDevice,
  kFiles, ///< reads and writes of the tier NVMe
  kOptimizer, ///< norms and updates
  kUpdates, ///< updates on the CPU beside forward and backward
  kData, ///< making batches
};

/// "compute", "unshard", "D2H", ...
const char* name_of(TraceLane lane);
inline constexpr int kTraceLanes = static_cast<int>(TraceLane::kData) + 1;

struct RecordedSpan {
  TraceLane lane = TraceLane::kCompute;
  std::string name;
  StreamTime begin; ///< of the host, or of the recorder's device
  StreamTime end;
  bool on_device = false;
  int64_t bytes = 0; ///< 0: none, or not known
};

/// Records spans of all threads from its construction to its end. A process has
/// one at a time.
class SpanRecorder {
 public:
  SpanRecorder();
  virtual ~SpanRecorder();
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  /// Null if nothing is recorded.
  static SpanRecorder* current() {
    return current_.load(std::memory_order_acquire);
  }
  /// Adds a span to the recorder that is current; drops it if there is none.
  static void add(RecordedSpan span);
  /// Adds a span that begins now and ends, within the time between two calls of
  /// poll(), when `is_done`.
  static void watch(
      TraceLane lane,
      std::string_view name,
      int64_t bytes,
      std::function<bool()> is_done);

  /// Ends the watched spans that are done.
  void poll();
  std::vector<RecordedSpan> take();

 protected:
  /// On the thread that begins or ends a TraceSpan.
  virtual void on_begin_span(TraceLane /*lane*/) {}
  virtual void on_end_span(TraceLane /*lane*/) {}

 private:
  friend class TraceSpan;
  struct Watched {
    RecordedSpan span;
    std::function<bool()> is_done;
  };

  static std::atomic<SpanRecorder*> current_;
  std::vector<RecordedSpan> spans_;
  std::vector<Watched> watched_;
};

/// Records the time of a scope: on the host, or on the current stream of a
/// device with streams, which has to be the same at both ends.
class TraceSpan {
 public:
  TraceSpan(
      TraceLane lane,
      std::string_view name,
      c10::Device device = c10::Device(c10::DeviceType::CPU),
      int64_t bytes = 0) {
    if (SpanRecorder::current() != nullptr) {
      open(lane, name, device, bytes);
    }
  }
  ~TraceSpan() {
    if (is_open_) {
      close();
    }
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void open(
      TraceLane lane,
      std::string_view name,
      c10::Device device,
      int64_t bytes);
  void close() noexcept;

  bool is_open_ = false;
  c10::Device device_{c10::DeviceType::CPU};
  RecordedSpan span_;
};

/// While it lives, collectives that this thread issues belong to `lane`.
class TraceLaneScope {
 public:
  explicit TraceLaneScope(TraceLane lane);
  ~TraceLaneScope();
  TraceLaneScope(const TraceLaneScope&) = delete;
  TraceLaneScope& operator=(const TraceLaneScope&) = delete;

  /// kCollectives outside of any.
  static TraceLane current();

 private:
  TraceLane before_;
};

} // namespace tessera::runtime
