// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_tiers.h"

#include "tessera/engine/optim/state_needs.h"
#include "tessera/engine/optim/state_stage.h"
#include "tessera/engine/optim/streamed_update.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// What is left of each tier.
struct Room {
  int64_t device = 0;
  int64_t host = 0;
  int64_t nvme = 0;
};

struct Placing {
  std::vector<MemoryTier> tiers;
  bool all_fit = true;

  /// Some state is not on the device.
  bool is_apart() const {
    return !all_fit ||
           std::any_of(tiers.begin(), tiers.end(), [](MemoryTier tier) {
             return tier != MemoryTier::kDevice;
           });
  }
};

/// Puts every group on the first tier that has room; the device where none has,
/// so that its error says what is missing.
Placing fill(const std::vector<StateNeeds>& needs, Room room) {
  Placing placing;
  for (const StateNeeds& group : needs) {
    const auto take = [&](int64_t& left) {
      const bool fits = group.state <= left;
      left -= fits ? group.state : 0;
      return fits;
    };
    if (take(room.device)) {
      placing.tiers.push_back(MemoryTier::kDevice);
    } else if (take(room.host)) {
      placing.tiers.push_back(MemoryTier::kHost);
    } else if (group.may_rest_in_files && take(room.nvme)) {
      placing.tiers.push_back(MemoryTier::kNvme);
    } else {
      placing.tiers.push_back(MemoryTier::kDevice);
      placing.all_fit = false;
    }
  }
  return placing;
}

} // namespace

StateTiers::StateTiers(
    const OptimizerOptions& optimizer,
    const MemoryBudget& memory,
    const OffloadOptions& offload,
    const PagerOptions& sharding,
    MemoryLedger& ledger)
    : optimizer_(optimizer),
      memory_(memory),
      offload_(offload),
      sharding_(sharding),
      ledger_(ledger) {}

void StateTiers::plan(
    const std::vector<GroupSpec>& groups,
    const ShardMesh& mesh) {
  switch (optimizer_.placement) {
    case StatePlacement::kAutomatic:
      place(groups, mesh);
      break;
    case StatePlacement::kWithParameters:
      tiers_.assign(groups.size(), MemoryTier::kDevice);
      break;
    case StatePlacement::kHost:
      tiers_.assign(groups.size(), MemoryTier::kHost);
      reserve_device_stage(groups, mesh, device_room(groups, mesh));
      break;
    case StatePlacement::kNvme:
      tiers_.assign(groups.size(), MemoryTier::kNvme);
      for (const GroupSpec& group : groups) {
        TESSERA_CHECK(
            state_needs(group, optimizer_, sharding_, mesh).may_rest_in_files,
            "optimizer.placement is nvme, and a user's optimizer keeps the "
            "state of group '",
            group.name,
            "' itself; use placement host.");
      }
      reserve_device_stage(groups, mesh, device_room(groups, mesh));
      break;
  }
  make_stores(groups.front().parameters.front().tensor.device());
}

/// For optimizer state.
int64_t StateTiers::device_room(
    const std::vector<GroupSpec>& groups,
    const ShardMesh& mesh) const {
  return memory_.device_bytes
             ? *memory_.device_bytes - memory_.activation_bytes -
                   device_needs(groups, sharding_, mesh)
             : kUnlimited;
}

/// @return what of `room` is set aside for state that is streamed. Where nobody
/// has asked for it the CPU does without.
int64_t StateTiers::reserve_device_stage(
    const std::vector<GroupSpec>& groups,
    const ShardMesh& mesh,
    int64_t room) {
  const bool on_cpu = groups.front().parameters.front().tensor.is_cpu();
  if (offload_.ratio.value_or(on_cpu ? 1 : 0) == 1) {
    return 0;
  }
  int64_t bytes = 0;
  for (const GroupSpec& group : groups) {
    bytes = std::max(
        bytes,
        StreamedUpdate::bytes_for(
            state_needs(group, optimizer_, sharding_, mesh).state,
            static_cast<int64_t>(group.parameters.size()),
            offload_.stage_bytes));
  }
  if (!offload_.ratio && bytes > room) {
    return 0;
  }
  device_stage_bytes_ = offload_.stage_bytes;
  return bytes;
}

void StateTiers::place(
    const std::vector<GroupSpec>& groups,
    const ShardMesh& mesh) {
  std::vector<StateNeeds> needs;
  int64_t staged_shards = 0;
  int64_t staged = 0;
  for (const GroupSpec& group : groups) {
    needs.push_back(state_needs(group, optimizer_, sharding_, mesh));
    const StateNeeds& last = needs.back();
    staged_shards = std::max(staged_shards, last.staged_shards);
    staged = std::max(staged, last.staged_shards + last.staged_state);
  }
  Room room;
  room.device = device_room(groups, mesh);
  if (memory_.host_bytes) {
    room.host = *memory_.host_bytes - StateStage::kBuffers * staged_shards;
  }
  Placing placing = fill(needs, room);
  if (placing.is_apart()) {
    room.device -= reserve_device_stage(groups, mesh, room.device);
    placing = fill(needs, room);
  }
  if (placing.all_fit || memory_.nvme_path.empty()) {
    tiers_ = std::move(placing.tiers);
    return;
  }
  // With files more passes through the host.
  if (memory_.host_bytes) {
    room.host = *memory_.host_bytes - StateStage::kBuffers * staged -
                BlockPipeline::staging_bytes();
  }
  room.nvme = memory_.nvme_bytes.value_or(kUnlimited);
  tiers_ = fill(needs, room).tiers;
}

void StateTiers::make_stores(c10::Device device) {
  host_memory_ = std::make_unique<HostMemory>(
      HostMemoryOptions{memory_.host_bytes, device}, ledger_);
  host_ = std::make_unique<HostStore>(*host_memory_);
  if (std::find(tiers_.begin(), tiers_.end(), MemoryTier::kNvme) !=
      tiers_.end()) {
    TESSERA_CHECK(
        !memory_.nvme_path.empty(),
        "optimizer.placement is nvme, and memory.nvme_path is not set; name a "
        "folder on a local disk.");
    nvme_ = std::make_unique<NvmeStore>(
        NvmeOptions{memory_.nvme_path, memory_.nvme_bytes},
        *host_memory_,
        ledger_);
  }
}

ShardStore* StateTiers::store(size_t group) const {
  switch (tiers_[group]) {
    case MemoryTier::kDevice:
      return nullptr;
    case MemoryTier::kHost:
      return host_.get();
    case MemoryTier::kNvme:
      return nvme_.get();
  }
  return nullptr;
}

ShardStore* StateTiers::memory_store(size_t group) const {
  return tiers_[group] == MemoryTier::kDevice ? nullptr : host_.get();
}

} // namespace tessera
