// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ActivationOffload` moves tensors that are saved for backward to the host.

#include "tessera/offload/activations/activation_statistics.h"
#include "tessera/offload/options/offload_options.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::offload {

class HostActivationSink;

} // namespace tessera::offload

namespace tessera::engine {

/// While it lives, tensors that operators on any thread save for backward on
/// the device of a module may rest on the host ([Note: activation budget]),
/// whichever model saves them. Parameters and buffers of the module, and
/// parameters of all wrapped modules, stay. If several exist, the latest one
/// handles all tensors. Graphs may outlive it.
class ActivationOffload {
 public:
  /// @param module its current parameters and buffers are not moved; it has
  ///   parameters, all on one device.
  /// @param tier PlacementOptions::activations.
  /// @param activation_bytes MemoryBudget::activation_bytes.
  ActivationOffload(
      const torch::nn::Module& module,
      std::optional<MemoryTier> tier,
      const OffloadOptions& options,
      int64_t activation_bytes);

  /// Where saved tensors go.
  std::shared_ptr<runtime::ActivationSink> sink() const;

  ActivationStatistics statistics() const;
  void reset_peaks();

  /// Tensors saved since none was last alive, that is by the last
  /// forward; largest first.
  std::vector<SavedByProducer> saved_by_producer() const;

 private:
  std::shared_ptr<offload::HostActivationSink> sink_;
  runtime::SavedTensorScope scope_;
};

} // namespace tessera::engine
