// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepProfiler` measures where the time of steps goes, by layer of the model,
// and records a trace of all that runs.

#include "tessera/engine/engine.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// A layer, or what else takes time; means per step, on this rank.
struct ProfileRow {
  std::string name; ///< "bert.encoder.layer.3"
  double forward_s = 0;
  double backward_s = 0; ///< with what is recomputed
  /// Two per multiplication and addition of matrix products, convolutions and
  /// attention, as executed.
  double forward_flops = 0;
  double backward_flops = 0;
  /// Tensor memory that is taken on the device when its forward has ended, per
  /// forward: what it keeps for backward.
  double kept_bytes = 0;

  double seconds() const {
    return forward_s + backward_s;
  }
};

struct StepProfile {
  int rank = 0;
  int64_t steps = 0;
  double step_s = 0; ///< mean
  std::vector<ProfileRow> layers; ///< in the order of their first use
  double waits_s = 0; ///< computation waits for gathers, reductions, tiers
  double optimizer_s = 0; ///< norms and updates
  double data_s = 0;
  /// The rest: what runs outside of layers, such as the log.
  double other_s = 0;
};

/// A table for a terminal of 100 columns.
std::string to_text(const StepProfile& profile);
nlohmann::ordered_json to_json(const StepProfile& profile);

/// Observes an engine from its construction to finish() or its end, without
/// which nothing is measured and nothing costs time. Observing does: steps of
/// many small operators take noticeably longer.
///
/// A layer is what its parameters' names have in common up to the first number,
/// or the module of a parameter whose name has none. Time counts from the
/// first operator that uses a parameter of a layer to the first of another one;
/// in backward, that of a node of autograd counts for the layer in whose
/// forward it was made. On a device with streams, times are the compute
/// stream's.
///
/// ```
/// tessera::StepProfiler profiler(engine);
/// for (int i = 0; i < 3; ++i) {
///   engine.backward(loss(batch));
///   engine.step();
///   profiler.end_step();
/// }
/// profiler.finish();
/// puts(to_text(profiler.profile()).c_str());
/// profiler.write_trace("trace.json");
/// ```
class StepProfiler {
 public:
  /// @param engine must outlive it. One per process at a time, on the thread
  ///   that trains.
  explicit StepProfiler(Engine& engine);
  ~StepProfiler();
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  /// Ends a step and begins the next.
  void end_step();
  /// Stops observing. Blocks until the device has finished.
  void finish();

  /// After finish().
  const StepProfile& profile() const;
  /// Writes a trace in Chrome's format, which Perfetto
  /// (https://ui.perfetto.dev) and chrome://tracing show: a process for the
  /// rank, with a line for each of compute (by layer, on the CPU also by
  /// operator), waits, unshard, reduce, other collectives, D2H, H2D, NVMe,
  /// optimizer and data. Clocks are those of the hosts. After finish().
  /// @throws tessera::Error if the file cannot be written.
  void write_trace(const std::filesystem::path& path) const;

 private:
  class Recording;
  std::unique_ptr<Recording> recording_;
};

} // namespace tessera
