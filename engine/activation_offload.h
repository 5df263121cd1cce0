// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether and when tensors that are saved for backward rest on the host.

#include "tessera/offload/activation_statistics.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera {

class HostActivationSink;

enum class OffloadActivations {
  kOff, ///< nothing is hooked; operators save as they always do
  /// The arguments of checkpointed blocks that ask for it
  /// (CheckpointOptions::inputs_on_host).
  kBlocks,
  /// What exceeds MemoryBudget::activation_bytes, the oldest first.
  kAuto,
  /// Everything is copied as soon as it is saved; what exceeds prefetch_bytes
  /// (and activation_bytes, if given) leaves.
  kAll,
};

struct OffloadOptions {
  OffloadActivations activations = OffloadActivations::kOff;
  /// Smaller storages stay on the device.
  int64_t min_tensor_bytes = 64 << 10;
  /// The most that comes back ahead of its use in backward.
  int64_t prefetch_bytes = 64 << 20;
  /// Limit of the host memory for activations; none: what there is.
  std::optional<int64_t> activation_host_bytes;
};

/// While it lives, what any thread's operators save for backward on the device
/// of a module may rest on the host ([Note: activation budget]), whichever
/// model saves it; parameters and buffers of the module, and parameters of all
/// wrapped ones, stay. Of several the latest takes all. Graphs may outlive it.
class ActivationOffload {
 public:
  /// @param module its parameters and buffers, as they are now, are not moved;
  ///   has parameters, all on one device.
  /// @param activation_bytes MemoryBudget::activation_bytes.
  /// @throws tessera::Error when kAuto has no budget.
  ActivationOffload(
      const torch::nn::Module& module,
      const OffloadOptions& options,
      int64_t activation_bytes);

  ActivationStatistics statistics() const;
  void reset_peaks();

  /// Since nothing was saved last: that is, of the last forward. Largest first.
  std::vector<SavedByProducer> saved_by_producer() const;

 private:
  std::shared_ptr<HostActivationSink> sink_;
  SavedTensorScope scope_;
};

/// Throws unless the two can go together.
void check(const OffloadOptions& options, int64_t activation_bytes);

} // namespace tessera
