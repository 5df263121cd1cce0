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
      const std::vector<sharding::GroupSpec>& groups,
      const OptimizerRules& optimizer,
      const MemoryBudget& memory,
      const OffloadOptions& offload,
      const PagerOptions& sharding,
      const sharding::ShardMesh& mesh)
      : groups_(groups),
        optimizer_(optimizer),
        memory_(memory),
        offload_(offload),
        sharding_(sharding),
        mesh_(mesh) {
    plan_.shards.resize(groups.size());
  }

  TierPlan plan() {
    place_shards();
    place_state();
    return std::move(plan_);
  }

 private:
  /// One kind of a group's shards, and its size in a store.
  struct Kind {
    MemoryTier ShardTiers::*tier;
    std::optional<MemoryTier> wanted;
    int64_t (Planner::*bytes)(const sharding::GroupSpec&) const;
  };

  int64_t bytes_of_gradients(const sharding::GroupSpec& group) const {
    return gradient_bytes(group, sharding_, mesh_);
  }
  int64_t bytes_of_parameters(const sharding::GroupSpec& group) const {
    return parameter_bytes(group, mesh_);
  }

  void place_shards() {
    for (const Kind& kind : kinds_) {
      if (kind.wanted) {
        for (ShardTiers& tiers : plan_.shards) {
          tiers.*kind.tier = *kind.wanted;
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
    const std::vector<ShardTiers> before = plan_.shards;
    size_t enough = groups_.size();
    size_t too_few = 0;
    move_first(kind, enough);
    while (device_room() >= 0 && too_few + 1 < enough) {
      const size_t middle = (too_few + enough) / 2;
      plan_.shards = before;
      move_first(kind, middle);
      if (device_room() >= 0) {
        enough = middle;
      } else {
        too_few = middle;
        plan_.shards = before;
        move_first(kind, enough);
      }
    }
  }

  void move_first(const Kind& kind, size_t count) {
    Room room = room_beside_shards(most_staged());
    for (size_t g = 0; g < count; ++g) {
      const int64_t bytes = (this->*kind.bytes)(groups_[g]);
      if (bytes > 0 && take(room.host, bytes)) {
        plan_.shards[g].*kind.tier = MemoryTier::kHost;
      } else if (bytes > 0 && take(room.nvme, bytes)) {
        plan_.shards[g].*kind.tier = MemoryTier::kNvme;
      }
    }
  }

  /// The most that may be staged in host memory, wherever shards and state
  /// rest.
  int64_t most_staged() const {
    const bool files = !memory_.nvme_path.empty();
    const MemoryTier lowest = files ? MemoryTier::kNvme : MemoryTier::kDevice;
    int64_t staged = 0;
    for (const sharding::GroupSpec& group : groups_) {
      const StateNeeds needs =
          state_needs(group, optimizer_, sharding_, mesh_, {lowest, lowest});
      staged = std::max(
          staged, needs.staged_shards + (files ? needs.staged_state : 0));
    }
    return StateStage::kBuffers * staged +
           (files ? offload::BlockPipeline::staging_bytes() : 0);
  }

  int64_t device_room() const {
    return memory_.device_bytes
               ? *memory_.device_bytes - memory_.activation_bytes -
                     device_needs(groups_, sharding_, mesh_, plan_.shards)
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
      for (size_t g = 0; g < groups_.size(); ++g) {
        const MemoryTier tier = plan_.shards[g].*kind.tier;
        const int64_t bytes = (this->*kind.bytes)(groups_[g]);
        room.host -= tier == MemoryTier::kHost ? bytes : 0;
        room.nvme -= tier == MemoryTier::kNvme ? bytes : 0;
      }
    }
    return room;
  }

  void place_state() {
    switch (optimizer_.options().placement) {
      case StatePlacement::kAutomatic:
        place_state_by_room();
        break;
      case StatePlacement::kWithParameters:
        plan_.state.assign(groups_.size(), MemoryTier::kDevice);
        break;
      case StatePlacement::kHost:
        plan_.state.assign(groups_.size(), MemoryTier::kHost);
        reserve_device_stage(device_room());
        break;
      case StatePlacement::kNvme:
        plan_.state.assign(groups_.size(), MemoryTier::kNvme);
        for (size_t g = 0; g < groups_.size(); ++g) {
          TESSERA_CHECK(
              needs_of(g).may_rest_in_files,
              "optimizer.placement is nvme, but a user-defined optimizer keeps the state of group '{}' itself; use optimizer.placement host.",
              groups_[g].name);
        }
        reserve_device_stage(device_room());
        break;
    }
  }

  bool on_cpu() const {
    return groups_.front().parameters.front().tensor.device().is_cpu();
  }

  StateNeeds needs_of(size_t g) const {
    return state_needs(
        groups_[g], optimizer_, sharding_, mesh_, plan_.shards[g]);
  }

  bool shards_rest_in_files() const {
    return std::any_of(
        plan_.shards.begin(), plan_.shards.end(), [](const ShardTiers& tiers) {
          return tiers.parameters == MemoryTier::kNvme ||
                 tiers.gradients == MemoryTier::kNvme;
        });
  }

  void place_state_by_room() {
    std::vector<StateNeeds> needs;
    int64_t staged_shards = 0;
    int64_t staged = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
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
    if (std::any_of(plan_.state.begin(), plan_.state.end(), [](auto tier) {
          return tier != MemoryTier::kDevice;
        })) {
      place(reserve_device_stage(device_room()));
    }
  }

  /// @return the part of `room` that is reserved for streamed state. If the
  ///   options do not ask for streaming, it is done only if there is room.
  int64_t reserve_device_stage(int64_t room) {
    const bool on_cpu =
        groups_.front().parameters.front().tensor.device().is_cpu();
    if (offload_.ratio.value_or(on_cpu ? 1 : 0) == 1) {
      return 0;
    }
    int64_t bytes = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      bytes = std::max(
          bytes,
          StreamedUpdate::bytes_for(
              needs_of(g).state,
              static_cast<int64_t>(groups_[g].parameters.size()),
              offload_.stage_bytes));
    }
    if (!offload_.ratio && bytes > room) {
      return 0;
    }
    plan_.device_stage_bytes = offload_.stage_bytes;
    return bytes;
  }

  /// Puts every group's state on the first tier that has room; on the device if
  /// none has.
  /// @return whether all fit.
  bool fill(const std::vector<StateNeeds>& needs, Room room) {
    bool all_fit = true;
    plan_.state.clear();
    for (const StateNeeds& group : needs) {
      const int64_t twice = group.state + group.second_state;
      if (group.state == 0 || take(room.device, group.state)) {
        plan_.state.push_back(MemoryTier::kDevice);
        room.host -= on_cpu() ? group.second_state + group.second_weights : 0;
      } else if (take(room.host, twice + group.second_weights)) {
        plan_.state.push_back(MemoryTier::kHost);
      } else if (group.may_rest_in_files && take(room.nvme, twice)) {
        plan_.state.push_back(MemoryTier::kNvme);
        room.host -= group.second_weights;
      } else {
        plan_.state.push_back(MemoryTier::kDevice);
        all_fit = false;
      }
    }
    return all_fit;
  }

  const std::vector<sharding::GroupSpec>& groups_;
  const OptimizerRules& optimizer_;
  const MemoryBudget& memory_;
  const OffloadOptions& offload_;
  const PagerOptions& sharding_;
  const sharding::ShardMesh& mesh_;
  const std::vector<Kind> kinds_ = {
      {&ShardTiers::gradients, memory_.gradients, &Planner::bytes_of_gradients},
      {&ShardTiers::parameters,
       memory_.parameters,
       &Planner::bytes_of_parameters}};
  TierPlan plan_;
};

} // namespace

TierPlan plan_tiers(
    const std::vector<sharding::GroupSpec>& groups,
    const OptimizerRules& optimizer,
    const MemoryBudget& memory,
    const OffloadOptions& offload,
    const PagerOptions& sharding,
    const sharding::ShardMesh& mesh) {
  return Planner(groups, optimizer, memory, offload, sharding, mesh).plan();
}

} // namespace tessera::engine
