// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/placement/tier_plan.h"

#include "tessera/offload/stores/block_pipeline.h"
#include "tessera/offload/updates/staging_buffers.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace tessera::offload {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// Bytes left on each tier.
struct PlanBudget {
  int64_t device = 0;
  int64_t host = 0;
  int64_t nvme = 0;
};

bool take(int64_t& left, int64_t bytes) {
  const bool fits = bytes <= left;
  left -= fits ? bytes : 0;
  return fits;
}

class Planner {
 public:
  Planner(
      const TierNeeds& needs,
      const PlacementOptions& placement,
      const MemoryBudget& memory,
      const OffloadOptions& offload)
      : needs_(needs),
        pages_(needs.pages),
        placement_(placement),
        memory_(memory),
        offload_(offload) {
    plan_.pages.resize(pages_.size());
  }

  TierPlan plan() {
    place_shards();
    place_state();
    return std::move(plan_);
  }

 private:
  /// One kind of a page's shards, and its size in a store.
  struct Kind {
    MemoryTier runtime::ShardTiers::*tier;
    std::optional<MemoryTier> wanted;
    int64_t PageNeeds::*bytes;
  };

  void place_shards() {
    for (const Kind& kind : kinds_) {
      for (size_t g = 0; kind.wanted && g < pages_.size(); ++g) {
        if (pages_[g].*kind.bytes > 0) {
          plan_.pages[g].*kind.tier = *kind.wanted;
        }
      }
    }
    for (const Kind& kind : kinds_) {
      if (!kind.wanted && memory_.device_bytes && device_available() < 0) {
        move(kind);
      }
    }
  }

  /// Moves the shards of the fewest pages off the device that make room there;
  /// those of all pages if that is not enough.
  void move(const Kind& kind) {
    const std::vector<runtime::ShardTiers> before = plan_.pages;
    size_t enough = pages_.size();
    size_t too_few = 0;
    move_first(kind, enough);
    while (device_available() >= 0 && too_few + 1 < enough) {
      const size_t middle = (too_few + enough) / 2;
      plan_.pages = before;
      move_first(kind, middle);
      if (device_available() >= 0) {
        enough = middle;
      } else {
        too_few = middle;
        plan_.pages = before;
        move_first(kind, enough);
      }
    }
  }

  void move_first(const Kind& kind, size_t count) {
    PlanBudget budget = available_beside_shards(most_staged());
    for (size_t g = 0; g < count; ++g) {
      const int64_t bytes = pages_[g].*kind.bytes;
      if (bytes > 0 && take(budget.host, bytes)) {
        plan_.pages[g].*kind.tier = MemoryTier::kHost;
      } else if (bytes > 0 && take(budget.nvme, bytes)) {
        plan_.pages[g].*kind.tier = MemoryTier::kNvme;
      }
    }
  }

  /// The most that may be staged in host memory, wherever shards and state
  /// rest.
  int64_t most_staged() const {
    const bool files = !memory_.nvme_path.empty();
    const MemoryTier lowest = files ? MemoryTier::kNvme : MemoryTier::kDevice;
    int64_t staged = 0;
    for (const PageNeeds& page : pages_) {
      staged = std::max(
          staged,
          staged_shards(page, {lowest, lowest}) +
              (files ? page.staged_state : 0));
    }
    return StagingBuffers::kBuffers * staged +
           (files ? BlockPipeline::staging_bytes() : 0);
  }

  int64_t device_available() const {
    return memory_.device_bytes
               ? *memory_.device_bytes - memory_.activation_bytes -
                     needs_.device_bytes(plan_.pages)
               : kUnlimited;
  }

  /// @param staged bytes of host memory for staging.
  PlanBudget available_beside_shards(int64_t staged) const {
    PlanBudget budget;
    budget.device = device_available();
    budget.host = memory_.host_bytes ? *memory_.host_bytes - staged : 0;
    if (!memory_.nvme_path.empty()) {
      budget.nvme = memory_.nvme_bytes.value_or(kUnlimited);
    }
    for (const Kind& kind : kinds_) {
      for (size_t g = 0; g < pages_.size(); ++g) {
        const MemoryTier tier = plan_.pages[g].*kind.tier;
        const int64_t bytes = pages_[g].*kind.bytes;
        budget.host -= tier == MemoryTier::kHost ? bytes : 0;
        budget.nvme -= tier == MemoryTier::kNvme ? bytes : 0;
      }
    }
    return budget;
  }

  void place_state() {
    if (!placement_.optimizer) {
      place_state_by_budget();
      return;
    }
    for (runtime::ShardTiers& tiers : plan_.pages) {
      tiers.state = *placement_.optimizer;
    }
    if (placement_.optimizer == MemoryTier::kNvme) {
      for (size_t g = 0; g < pages_.size(); ++g) {
        TESSERA_CHECK(
            pages_[g].may_rest_in_files,
            "placement.optimizer is nvme, but a user-defined optimizer keeps the state of group '{}' itself; use placement.optimizer host.",
            pages_[g].name);
      }
    }
    if (placement_.optimizer != MemoryTier::kDevice) {
      reserve_stream_buffers(device_available());
    }
  }

  bool on_cpu() const {
    return needs_.device.is_cpu();
  }

  /// Staging of the page's shards when a step updates it on the CPU.
  int64_t staged_shards(const PageNeeds& page, const runtime::ShardTiers& tiers)
      const {
    const auto passes = [&](MemoryTier tier) {
      return tier == MemoryTier::kNvme ||
             (tier == MemoryTier::kDevice && !on_cpu());
    };
    return (passes(tiers.gradients) ? page.staged_gradients : 0) +
           (passes(tiers.parameters) ? page.staged_parameters : 0);
  }

  bool shards_rest_in_files() const {
    return std::any_of(
        plan_.pages.begin(),
        plan_.pages.end(),
        [](const runtime::ShardTiers& tiers) {
          return tiers.parameters == MemoryTier::kNvme ||
                 tiers.gradients == MemoryTier::kNvme;
        });
  }

  void place_state_by_budget() {
    int64_t most_of_shards = 0;
    int64_t most = 0;
    for (size_t g = 0; g < pages_.size(); ++g) {
      const int64_t shards = staged_shards(pages_[g], plan_.pages[g]);
      most_of_shards = std::max(most_of_shards, shards);
      most = std::max(most, shards + pages_[g].staged_state);
    }
    const auto place = [&](int64_t on_device) {
      PlanBudget budget = available_beside_shards(
          StagingBuffers::kBuffers * most_of_shards +
          (shards_rest_in_files() ? BlockPipeline::staging_bytes() : 0));
      budget.device -= on_device;
      if (!fill({budget.device, budget.host, 0}) && budget.nvme > 0) {
        // With files, more is staged in host memory.
        budget = available_beside_shards(
            StagingBuffers::kBuffers * most + BlockPipeline::staging_bytes());
        budget.device -= on_device;
        fill(budget);
      }
    };
    place(0);
    if (std::any_of(
            plan_.pages.begin(), plan_.pages.end(), [](const auto& tiers) {
              return tiers.state != MemoryTier::kDevice;
            })) {
      place(reserve_stream_buffers(device_available()));
    }
  }

  /// @return the part of `budget` that is reserved for streamed state. If the
  ///   options do not ask for streaming, it is done only if there is room.
  int64_t reserve_stream_buffers(int64_t budget) {
    if (offload_.ratio.value_or(on_cpu() ? 1 : 0) == 1) {
      return 0;
    }
    int64_t bytes = 0;
    for (const PageNeeds& page : pages_) {
      bytes = std::max(
          bytes,
          StreamedUpdate::bytes_for(
              page.state, page.segments, offload_.stage_bytes));
    }
    if (!offload_.ratio && bytes > budget) {
      return 0;
    }
    plan_.may_stream = true;
    return bytes;
  }

  /// Puts every page's state on the first tier that has room; on the device if
  /// none has.
  /// @return whether all fit.
  bool fill(PlanBudget budget) {
    bool all_fit = true;
    for (size_t g = 0; g < pages_.size(); ++g) {
      const PageNeeds& page = pages_[g];
      MemoryTier& tier = plan_.pages[g].state;
      const int64_t twice = page.state + page.second_state;
      if (page.state == 0 || take(budget.device, page.state)) {
        tier = MemoryTier::kDevice;
        budget.host -= on_cpu() ? page.second_state + page.second_weights : 0;
      } else if (take(budget.host, twice + page.second_weights)) {
        tier = MemoryTier::kHost;
      } else if (page.may_rest_in_files && take(budget.nvme, twice)) {
        tier = MemoryTier::kNvme;
        budget.host -= page.second_weights;
      } else {
        tier = MemoryTier::kDevice;
        all_fit = false;
      }
    }
    return all_fit;
  }

  const TierNeeds& needs_;
  const std::vector<PageNeeds>& pages_;
  const PlacementOptions& placement_;
  const MemoryBudget& memory_;
  const OffloadOptions& offload_;
  const std::vector<Kind> kinds_ = {
      {&runtime::ShardTiers::gradients,
       placement_.gradients,
       &PageNeeds::gradients},
      {&runtime::ShardTiers::parameters,
       placement_.parameters,
       &PageNeeds::parameters}};
  TierPlan plan_;
};

} // namespace

bool TierPlan::uses(MemoryTier tier) const {
  return std::any_of(
      pages.begin(), pages.end(), [tier](const runtime::ShardTiers& of) {
        return of.parameters == tier || of.gradients == tier ||
               of.state == tier;
      });
}

TierPlan plan_tiers(
    const TierNeeds& needs,
    const PlacementOptions& placement,
    const MemoryBudget& memory,
    const OffloadOptions& offload) {
  return Planner(needs, placement, memory, offload).plan();
}

} // namespace tessera::offload
