// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether and when tensors that are saved for backward rest on the host.

#include "tessera/engine/offload_options.h"
#include "tessera/offload/activation_statistics.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

class HostActivationSink;

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

} // namespace tessera
