// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepTiming` measures where the time of optimizer steps goes.

#include "tessera/runtime/streams/stream_time.h"
#include "tessera/sharding/paging/transfer_waits.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace tessera::engine {

enum class StepPhase {
  kData, ///< making a batch and copying it to the device
  kForward,
  kBackward,
  kOptimizer, ///< clipping and the update
};

/// Seconds on this rank. Waits for all-gathers, reductions and tiers count as
/// exposed_transfer, not as the phase in which they happened.
struct StepSplit {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double optimizer = 0;
  double exposed_transfer = 0;

  double total() const {
    return data + forward + backward + optimizer + exposed_transfer;
  }
  StepSplit divided_by(double count) const;
};

/// Measures the phases of steps, by the device's own clock if it has streams:
/// the host waits in take() only. Reads a clock twice per phase and per wait.
class StepTiming {
 public:
  /// @param waits of the module that is trained; must outlive this object and
  ///   not be used by another StepTiming.
  StepTiming(c10::Device device, TransferWaits& waits);
  ~StepTiming();
  StepTiming(const StepTiming&) = delete;
  StepTiming& operator=(const StepTiming&) = delete;

  /// Begins a phase and ends the one before.
  void begin(StepPhase phase);
  /// Ends the last phase: what follows belongs to no step.
  void end();

  /// Returns what was measured since the last call. No phase may be open.
  /// Blocks until the device has finished.
  StepSplit take();

 private:
  struct Mark {
    StepPhase phase;
    bool is_end;
    runtime::StreamTime time;
    size_t waits; ///< noted before it
  };
  void mark(StepPhase phase, bool is_end);

  c10::Device device_;
  TransferWaits& waits_;
  std::vector<Mark> marks_;
};

} // namespace tessera::engine
