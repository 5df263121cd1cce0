// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the time of optimizer steps goes to.

#include "tessera/runtime/memory/stream_time.h"
#include "tessera/sharding/transfer_waits.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace tessera {

enum class StepPhase {
  kData, ///< making a batch and bringing it to the device
  kForward,
  kBackward,
  kOptimizer, ///< clipping and the update
};

/// Seconds of this rank. Waits for gathers, reductions and tiers are in
/// exposed_transfer, not in the phase that they happened in.
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

/// Measures phases of steps, on the device's own clock where it has streams:
/// the host does not wait before take(). Costs two readings of a clock per
/// phase and wait.
class StepTiming {
 public:
  /// @param waits of the module that is trained; outlives this object, and is
  ///   not used by another one.
  StepTiming(c10::Device device, TransferWaits& waits);
  ~StepTiming();
  StepTiming(const StepTiming&) = delete;
  StepTiming& operator=(const StepTiming&) = delete;

  /// Ends the phase before.
  void begin(StepPhase phase);
  /// Ends the last phase: what follows belongs to no step.
  void end();

  /// What was measured since the last call, which no phase may be open for.
  /// Blocks until the device has done it.
  StepSplit take();

 private:
  struct Mark {
    StepPhase phase;
    bool is_end;
    StreamTime time;
    size_t waits; ///< noted before it
  };
  void mark(StepPhase phase, bool is_end);

  c10::Device device_;
  TransferWaits& waits_;
  std::vector<Mark> marks_;
};

} // namespace tessera
