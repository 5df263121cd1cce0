// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EngineStatistics` is what Engine::stats() has counted.

#include "tessera/offload/activations/activation_statistics.h"
#include "tessera/offload/updates/update_statistics.h"
#include "tessera/sharding/paging/pager_statistics.h"

namespace tessera {

/// Since wrap(), on this rank.
struct EngineStatistics {
  PagerStatistics paging;
  /// Updates that overlap forward and backward; zeros with UpdateOverlap::kOff.
  UpdateStatistics updates;
  /// Bytes of saved tensors on the device and on the host; zeros where no
  /// activations leave the device (PlacementOptions::activations).
  ActivationStatistics activations;
};

} // namespace tessera
