// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepRecording` observes the steps of an engine for a StepProfiler.

#include "tessera/engine/engine.h"
#include "tessera/engine/profile/step_profiler.h"
#include "tessera/runtime/profile/flop_counter.h"
#include "tessera/runtime/profile/operator_observer.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/runtime/streams/stream_time.h"
#include "tessera/runtime/threads/by_thread.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::engine {

/// Which layer an operator belongs to, by its parameters; see StepProfiler.
class LayerTable {
 public:
  explicit LayerTable(const Engine& engine);

  const std::vector<std::string>& names() const {
    return names_;
  }
  /// The layer of a parameter among the inputs of a call.
  std::optional<size_t> find(const at::RecordFunction& call) const;

  /// "bert.encoder.layer.3" of a parameter "bert.encoder.layer.3.output.bias".
  static std::string layer_of(const std::string& parameter);

 private:
  std::vector<std::string> names_; ///< in the order of the engine
  std::unordered_map<const void*, size_t> layers_; ///< by storage
};

/// A stretch of time in which a layer computes.
struct LayerSegment {
  size_t layer = 0;
  bool is_backward = false;
  runtime::StreamTime begin;
  runtime::StreamTime end;
};

/// Operators and spans while it lives, of all threads.
class StepObservation : public runtime::OperatorObserver,
                        public runtime::SpanRecorder {
 public:
  /// @param rows by layer, get operations and bytes as sums.
  StepObservation(
      const LayerTable& layers,
      c10::Device device,
      std::vector<ProfileRow>& rows);

  void on_begin(const at::RecordFunction& call) override;
  void on_end(const at::RecordFunction& call) override;

  /// Ends the segment that is open.
  void close_segment();
  std::vector<LayerSegment> take_segments() {
    return std::move(segments_);
  }
  /// In the order of first use.
  const std::vector<size_t>& used_layers() const {
    return used_;
  }
  int64_t backwards() const {
    return backwards_;
  }

 protected:
  void on_begin_span(runtime::TraceLane lane) override;
  void on_end_span(runtime::TraceLane lane) override;

 private:
  struct LayerPass {
    size_t layer;
    bool is_backward;
    bool operator==(const LayerPass&) const = default;
  };

  /// The operators that a thread is in.
  struct ThreadCalls {
    runtime::FlopFrames frames;
    int functions = 0; ///< nested
    runtime::StreamTime outermost_begin;
    std::string outermost_name;
  };

  // The caller holds the mutex.
  void enter(LayerPass pass);
  void open();
  void close();
  std::optional<size_t> layer_of_node(const at::RecordFunction& call) const;

  const LayerTable& layers_;
  c10::Device device_;

  runtime::ByThread<ThreadCalls> calls_;

  std::mutex mutex_; ///< of what follows
  std::vector<ProfileRow>& rows_;
  std::optional<LayerPass> pass_; ///< of what computes now
  bool is_open_ = false; ///< a segment
  int suspended_ = 0; ///< in spans whose operators belong to no layer
  runtime::StreamTime opened_;
  int64_t live_bytes_ = 0; ///< when it was opened
  std::vector<LayerSegment> segments_;
  std::vector<size_t> used_;
  int64_t backwards_ = 0;
  /// By thread: from which number on nodes of autograd belong to which layer.
  std::map<uint64_t, std::map<int64_t, size_t>> nodes_;
};

/// See StepProfiler.
class StepRecording {
 public:
  explicit StepRecording(Engine& engine);
  ~StepRecording();
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  void end_step();
  void finish();
  const StepProfile& profile() const;
  /// {"traceEvents": [...]}.
  nlohmann::ordered_json trace() const;

 private:
  /// A span with times in seconds since the start.
  struct TimedSpan {
    runtime::TraceLane lane;
    std::string name;
    double begin_s;
    double end_s;
    int64_t bytes;
  };

  /// Of a lane in a trace; more spans than that do not overlap.
  static constexpr int kMostLines = 8;
  static std::vector<int> lines_of(const std::vector<TimedSpan>& spans);
  void add_segments(const std::vector<LayerSegment>& segments);
  void sum_up();

  Engine& engine_;
  LayerTable layers_;
  c10::Device device_;
  std::vector<ProfileRow> rows_; ///< by layer
  runtime::StreamTime device_start_;
  runtime::StreamTime host_start_;
  std::chrono::system_clock::time_point clock_start_;
  std::unique_ptr<StepObservation> observation_; ///< null once finished
  std::vector<runtime::StreamTime> step_ends_; ///< with the start
  std::vector<TimedSpan> spans_;
  StepProfile profile_;
};

} // namespace tessera::engine
