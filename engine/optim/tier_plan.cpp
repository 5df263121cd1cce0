// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/tier_plan.h"

#include "tessera/engine/optim/state_stage.h"
#include "tessera/engine/optim/streamed_update.h"
#include "tessera/offload/block_pipeline.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace tessera::engine {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// Bytes left on each tier.
struct Room {
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
      const std::vector<sharding::PageSpec>& pages,
      const OptimizerRules& optimizer,
      const PlacementOptions& placement,
      const MemoryBudget& memory,
      const OffloadOptions& offload,
      const sharding::PagerOptions& sharding)
      : pages_(pages),
        optimizer_(optimizer),
        placement_(placement),
        memory_(memory),
        offload_(offload),
        sharding_(sharding) {
    plan_.pages.resize(pages.size());
  }

  TierPlan plan() {
    place_shards();
    place_state();
    return std::move(plan_);
  }

 private:
  /// One kind of a page's shards, and its size in a store.
  struct Kind {
    MemoryTier sharding::ShardTiers::*tier;
    std::optional<MemoryTier> wanted;
    int64_t (*bytes)(const sharding::PageSpec&);
  };

  void place_shards() {
    for (const Kind& kind : kinds_) {
      for (size_t g = 0; kind.wanted && g < pages_.size(); ++g) {
        if (kind.bytes(pages_[g]) > 0) {
          plan_.pages[g].*kind.tier = *kind.wanted;
        }
      }
    }
    for (const Kind& kind : kinds_) {
      if (!kind.wanted && memory_.device_bytes && device_room() < 0) {
        move(kind);
      }
    }
  }

  /// Moves the shards of the fewest groups off the device that make room there;
  /// those of all groups if that is not enough.
  void move(const Kind& kind) {
    const std::vector<sharding::ShardTiers> before = plan_.pages;
    size_t enough = pages_.size();
    size_t too_few = 0;
    move_first(kind, enough);
    while (device_room() >= 0 && too_few + 1 < enough) {
      const size_t middle = (too_few + enough) / 2;
      plan_.pages = before;
      move_first(kind, middle);
      if (device_room() >= 0) {
        enough = middle;
      } else {
        too_few = middle;
        plan_.pages = before;
        move_first(kind, enough);
      }
    }
  }

  void move_first(const Kind& kind, size_t count) {
    Room room = room_beside_shards(most_staged());
    for (size_t g = 0; g < count; ++g) {
      const int64_t bytes = kind.bytes(pages_[g]);
      if (bytes > 0 && take(room.host, bytes)) {
        plan_.pages[g].*kind.tier = MemoryTier::kHost;
      } else if (bytes > 0 && take(room.nvme, bytes)) {
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
    for (const sharding::PageSpec& page : pages_) {
      const StateNeeds needs = state_needs(page, optimizer_, {lowest, lowest});
      staged = std::max(
          staged, needs.staged_shards + (files ? needs.staged_state : 0));
    }
    return StateStage::kBuffers * staged +
           (files ? offload::BlockPipeline::staging_bytes() : 0);
  }

  int64_t device_room() const {
    return memory_.device_bytes
               ? *memory_.device_bytes - memory_.activation_bytes -
                     device_needs(pages_, sharding_, plan_.pages)
               : kUnlimited;
  }

  /// @param staged bytes of host memory for staging.
  Room room_beside_shards(int64_t staged) const {
    Room room;
    room.device = device_room();
    room.host = memory_.host_bytes ? *memory_.host_bytes - staged : 0;
    if (!memory_.nvme_path.empty()) {
      room.nvme = memory_.nvme_bytes.value_or(kUnlimited);
    }
    for (const Kind& kind : kinds_) {
      for (size_t g = 0; g < pages_.size(); ++g) {
        const MemoryTier tier = plan_.pages[g].*kind.tier;
        const int64_t bytes = kind.bytes(pages_[g]);
        room.host -= tier == MemoryTier::kHost ? bytes : 0;
        room.nvme -= tier == MemoryTier::kNvme ? bytes : 0;
      }
    }
    return room;
  }

  void place_state() {
    if (!placement_.optimizer) {
      place_state_by_room();
      return;
    }
    for (sharding::ShardTiers& tiers : plan_.pages) {
      tiers.state = *placement_.optimizer;
    }
    if (placement_.optimizer == MemoryTier::kNvme) {
      for (size_t g = 0; g < pages_.size(); ++g) {
        TESSERA_CHECK(
            needs_of(g).may_rest_in_files,
            "placement.optimizer is nvme, but a user-defined optimizer keeps the state of group '{}' itself; use placement.optimizer host.",
            pages_[g].name);
      }
    }
    if (placement_.optimizer != MemoryTier::kDevice) {
      reserve_device_stage(device_room());
    }
  }

  bool on_cpu() const {
    return pages_.front().device.is_cpu();
  }

  StateNeeds needs_of(size_t g) const {
    return state_needs(pages_[g], optimizer_, plan_.pages[g]);
  }

  bool shards_rest_in_files() const {
    return std::any_of(
        plan_.pages.begin(),
        plan_.pages.end(),
        [](const sharding::ShardTiers& tiers) {
          return tiers.parameters == MemoryTier::kNvme ||
                 tiers.gradients == MemoryTier::kNvme;
        });
  }

  void place_state_by_room() {
    std::vector<StateNeeds> needs;
    int64_t staged_shards = 0;
    int64_t staged = 0;
    for (size_t g = 0; g < pages_.size(); ++g) {
      needs.push_back(needs_of(g));
      const StateNeeds& last = needs.back();
      staged_shards = std::max(staged_shards, last.staged_shards);
      staged = std::max(staged, last.staged_shards + last.staged_state);
    }
    const auto place = [&](int64_t on_device) {
      Room room = room_beside_shards(
          StateStage::kBuffers * staged_shards +
          (shards_rest_in_files() ? offload::BlockPipeline::staging_bytes()
                                  : 0));
      room.device -= on_device;
      if (!fill(needs, {room.device, room.host, 0}) && room.nvme > 0) {
        // With files, more is staged in host memory.
        room = room_beside_shards(
            StateStage::kBuffers * staged +
            offload::BlockPipeline::staging_bytes());
        room.device -= on_device;
        fill(needs, room);
      }
    };
    place(0);
    if (std::any_of(
            plan_.pages.begin(), plan_.pages.end(), [](const auto& tiers) {
              return tiers.state != MemoryTier::kDevice;
            })) {
      place(reserve_device_stage(device_room()));
    }
  }

  /// @return the part of `room` that is reserved for streamed state. If the
  ///   options do not ask for streaming, it is done only if there is room.
  int64_t reserve_device_stage(int64_t room) {
    if (offload_.ratio.value_or(on_cpu() ? 1 : 0) == 1) {
      return 0;
    }
    int64_t bytes = 0;
    for (size_t g = 0; g < pages_.size(); ++g) {
      bytes = std::max(
          bytes,
          StreamedUpdate::bytes_for(
              needs_of(g).state,
              static_cast<int64_t>(pages_[g].parameters.size()),
              offload_.stage_bytes));
    }
    if (!offload_.ratio && bytes > room) {
      return 0;
    }
    plan_.device_stage_bytes = offload_.stage_bytes;
    return bytes;
  }

  /// Puts every page's state on the first tier that has room; on the device if
  /// none has.
  /// @return whether all fit.
  bool fill(const std::vector<StateNeeds>& needs, Room room) {
    bool all_fit = true;
    for (size_t g = 0; g < needs.size(); ++g) {
      const StateNeeds& page = needs[g];
      MemoryTier& tier = plan_.pages[g].state;
      const int64_t twice = page.state + page.second_state;
      if (page.state == 0 || take(room.device, page.state)) {
        tier = MemoryTier::kDevice;
        room.host -= on_cpu() ? page.second_state + page.second_weights : 0;
      } else if (take(room.host, twice + page.second_weights)) {
        tier = MemoryTier::kHost;
      } else if (page.may_rest_in_files && take(room.nvme, twice)) {
        tier = MemoryTier::kNvme;
        room.host -= page.second_weights;
      } else {
        tier = MemoryTier::kDevice;
        all_fit = false;
      }
    }
    return all_fit;
  }

  const std::vector<sharding::PageSpec>& pages_;
  const OptimizerRules& optimizer_;
  const PlacementOptions& placement_;
  const MemoryBudget& memory_;
  const OffloadOptions& offload_;
  const sharding::PagerOptions& sharding_;
  const std::vector<Kind> kinds_ = {
      {&sharding::ShardTiers::gradients, placement_.gradients, gradient_bytes},
      {&sharding::ShardTiers::parameters,
       placement_.parameters,
       parameter_bytes}};
  TierPlan plan_;
};

} // namespace

bool TierPlan::uses(MemoryTier tier) const {
  return std::any_of(
      pages.begin(), pages.end(), [tier](const sharding::ShardTiers& of) {
        return of.parameters == tier || of.gradients == tier ||
               of.state == tier;
      });
}

TierPlan plan_tiers(
    const std::vector<sharding::PageSpec>& pages,
    const OptimizerRules& optimizer,
    const PlacementOptions& placement,
    const MemoryBudget& memory,
    const OffloadOptions& offload,
    const sharding::PagerOptions& sharding) {
  return Planner(pages, optimizer, placement, memory, offload, sharding).plan();
}

} // namespace tessera::engine
