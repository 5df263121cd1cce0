// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/state_needs.h"

#include "tessera/offload/host_memory.h"
#include "tessera/sharding/param_group.h"
#include "tessera/sharding/precision.h"
#include "tessera/sharding/residency_plan.h"

#include <algorithm>

namespace tessera::engine {

namespace {

// The state of every parameter begins at a multiple of this many elements.
constexpr int64_t kStateAlignment = 16;

int64_t size_of(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

struct MomentCount {
  int operator()(const SgdOptions& options) const {
    return options.momentum != 0 ? 1 : 0;
  }
  int operator()(const LionOptions&) const {
    return 1;
  }
  int operator()(const AdafactorOptions&) const {
    return 1;
  }
  template <typename Options>
  int operator()(const Options&) const {
    return 2; // the Adam family, and Muon's AdamW
  }
};

bool is_trainable(const sharding::GroupSpec& group) {
  return std::any_of(
      group.parameters.begin(), group.parameters.end(), [](const auto& record) {
        return record.tensor.requires_grad();
      });
}

bool has_own_master(
    const sharding::GroupSpec& group,
    const PrecisionPolicy& precision) {
  const at::ScalarType dtype = group.parameters.front().dtype;
  return is_trainable(group) && precision.master_weights &&
         is_low_precision(dtype);
}

at::ScalarType state_dtype(const sharding::GroupSpec& group) {
  return group.parameters.front().dtype == at::kDouble ? at::kDouble
                                                       : at::kFloat;
}

bool is_tied(const sharding::GroupSpec& group) {
  return std::any_of(
      group.parameters.begin(), group.parameters.end(), [](const auto& record) {
        return record.names.size() > 1;
      });
}

} // namespace

int max_moments(const UpdateRule& rule) {
  return std::visit(MomentCount{}, rule);
}

StateNeeds state_needs(
    const sharding::GroupSpec& group,
    const OptimizerRules& rules,
    const PagerOptions& sharding,
    const sharding::ShardMesh& mesh,
    const ShardTiers& tiers) {
  const OptimizerOptions& optimizer = rules.options();
  StateNeeds needs;
  if (!is_trainable(group)) {
    return needs;
  }
  const int64_t numel =
      sharding::flat_layout_of(group, mesh.shard_size).shard_numel();
  const at::ScalarType dtype = group.parameters.front().dtype;
  const int64_t item = size_of(state_dtype(group));
  int moments = 0;
  for (const sharding::ParameterRecord& record : group.parameters) {
    const UpdateRule rule = rules.settings_for(record.names).rule;
    moments = std::max(moments, max_moments(rule));
    needs.may_rest_in_files =
        needs.may_rest_in_files &&
        !std::holds_alternative<UserOptimizerOptions>(rule);
  }
  const auto count = static_cast<int64_t>(group.parameters.size());
  const int64_t own_master = has_own_master(group, sharding.precision)
                                 ? offload::HostMemory::rounded(4 * numel)
                                 : 0;
  const int64_t moment = offload::HostMemory::rounded(
      (numel + kStateAlignment * count) *
      (optimizer.moment_dtype ? size_of(*optimizer.moment_dtype) : item));
  needs.state = own_master + moments * moment;
  needs.staged_state = needs.state;
  if (optimizer.overlap == UpdateOverlap::kSpeculate) {
    needs.second_state = needs.state;
    needs.second_weights = offload::HostMemory::rounded(numel * size_of(dtype));
  }
  const bool on_cpu = group.parameters.front().tensor.device().is_cpu();
  const auto passes = [&](MemoryTier tier) {
    return tier == MemoryTier::kNvme ||
           (tier == MemoryTier::kDevice && !on_cpu);
  };
  if (passes(tiers.gradients)) {
    needs.staged_shards += offload::HostMemory::rounded(
        numel * size_of(accumulate_dtype(sharding.precision, dtype)));
  }
  if (passes(tiers.parameters)) {
    needs.staged_shards += offload::HostMemory::rounded(
        numel * (own_master > 0 ? size_of(dtype) : item));
  }
  return needs;
}

int64_t parameter_bytes(
    const sharding::GroupSpec& group,
    const sharding::ShardMesh& mesh) {
  return offload::HostMemory::rounded(
      sharding::flat_layout_of(group, mesh.shard_size).shard_numel() *
      size_of(group.parameters.front().dtype));
}

int64_t gradient_bytes(
    const sharding::GroupSpec& group,
    const PagerOptions& sharding,
    const sharding::ShardMesh& mesh) {
  if (!is_trainable(group)) {
    return 0;
  }
  const at::ScalarType dtype = group.parameters.front().dtype;
  return offload::HostMemory::rounded(
      sharding::flat_layout_of(group, mesh.shard_size).shard_numel() *
      size_of(accumulate_dtype(sharding.precision, dtype)));
}

int64_t device_needs(
    const std::vector<sharding::GroupSpec>& groups,
    const PagerOptions& sharding,
    const sharding::ShardMesh& mesh,
    std::vector<ShardTiers> tiers) {
  tiers.resize(groups.size());
  const bool divided = mesh.shard_size > 1;
  bool pages = divided;
  bool reduces = divided || mesh.replicas > 1;
  int64_t bytes = 0;
  int64_t kept_gradients = 0; // whole, in reduce slots
  std::vector<std::vector<int>> blocks;
  std::vector<bool> trainable;
  std::vector<bool> scattered;
  std::vector<int> tied;
  std::vector<int64_t> passing_gradients;
  sharding::PlanLimits limits;
  limits.prefetch_depth = sharding.prefetch_depth;
  for (size_t g = 0; g < groups.size(); ++g) {
    const sharding::GroupSpec& group = groups[g];
    const runtime::FlatLayout layout =
        sharding::flat_layout_of(group, mesh.shard_size);
    const at::ScalarType dtype = group.parameters.front().dtype;
    const bool stored = tiers[g].parameters != MemoryTier::kDevice;
    pages = pages || stored;
    reduces = reduces || stored;
    blocks.emplace_back(group.blocks.begin(), group.blocks.end());
    trainable.push_back(is_trainable(group));
    scattered.push_back(group.scattered);
    if (is_tied(group)) {
      tied.push_back(static_cast<int>(trainable.size()) - 1);
    }
    bytes += stored ? 0 : layout.shard_numel() * size_of(dtype);
    limits.group_bytes.push_back(
        divided || stored ? layout.padded_numel() * size_of(dtype)
                          : runtime::OffsetAllocator::kAlignment);
    passing_gradients.push_back(0);
    limits.keeps_gradients.push_back(
        keeps_whole_gradients(sharding, group.zero_stage));
    if (trainable.back()) {
      const GradientTypes types =
          gradient_types(sharding, mesh, dtype, group.zero_stage);
      const bool leaves = tiers[g].gradients != MemoryTier::kDevice;
      reduces = reduces || leaves;
      bytes += leaves ? 0 : layout.shard_numel() * size_of(types.shard);
      const int64_t slot =
          types.slot_numel(
              layout.padded_numel(), layout.shard_numel(), leaves) *
          size_of(types.slot);
      if (limits.keeps_gradients.back()) {
        kept_gradients += slot + runtime::OffsetAllocator::kAlignment;
      } else {
        passing_gradients.back() = slot;
      }
    }
  }
  const auto events =
      sharding::registration_order_events(blocks, trainable, scattered, tied);
  if (pages) {
    bytes += sharding::capacity_without_exposed_unshards(events, limits);
  }
  if (reduces) {
    bytes +=
        kept_gradients + sharding::peak_reduce_bytes(events, passing_gradients);
  }
  return bytes;
}

} // namespace tessera::engine
