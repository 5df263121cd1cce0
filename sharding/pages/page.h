// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Page` is a page of a pager: its weights (`PageMemory`), its gradients, and
// what the parts of the pager note of it.

#include "tessera/sharding/pages/gradient_bucket.h"
#include "tessera/sharding/pages/page_memory.h"
#include "tessera/sharding/pages/page_ranks.h"

#include <cstdint>
#include <memory>

namespace tessera::sharding {

/// How a page was used; kept by Unsharder.
struct PageUse {
  uint64_t epoch = 0; ///< of the plan entry that last used it
  uint64_t last_epoch = 0; ///< as above; stays when the page is resharded
  uint64_t unshard_sequence = 0; ///< of its last unshard
};

/// The gather scopes that hold a page; kept by GatherScopes.
struct PagePins {
  int all = 0;
  int writable = 0; ///< those of them that write to it
  bool written = false; ///< since it was unsharded
};

/// The reductions of a page's gradients; kept by GradientReducer.
struct PageReductions {
  uint64_t sequence = 0; ///< of the last one
  bool is_final = false; ///< the one in progress
  /// Gradients that arrived in this step, and the number that makes the page
  /// complete. With a world size of one they replace the plan.
  int arrivals = 0;
  int expected_arrivals = 0;
  /// The latest gradient of this step is of a backward that is not the
  /// engine's, which `arrivals` leaves out with update_in_backward.
  bool is_other_latest = false;
  /// In some step such a gradient came when the page was complete: it is
  /// updated by step(), not in backward, and `expected_arrivals` stays 0.
  bool collects = false;
};

struct Page : PageMemory {
  /// @param ranks of the page; must outlive it.
  Page(
      const PageSpec& page,
      PageFaultHandler& handler,
      MeshRanks& ranks,
      MemoryLedger& ledger,
      const runtime::ShardStores& stores)
      : PageMemory(page, handler, ledger, stores), ranks(ranks) {}

  MeshRanks& ranks; ///< that divide it
  std::unique_ptr<GradientBucket> gradients; ///< null: it is frozen
  PageUse use;
  PagePins pins;
  PageReductions reductions;
};

} // namespace tessera::sharding
