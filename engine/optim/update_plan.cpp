// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/update_plan.h"

#include "tessera/engine/optim/state_needs.h"
#include "tessera/engine/optim/update_rates.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace tessera::engine {

namespace {

/// Groups for which there is a choice, and what their updates move.
struct Choices {
  std::vector<size_t> groups;
  std::vector<int64_t> numel; ///< of the shard, of each
  int64_t all = 0; ///< sum of numel
  UpdateBytes bytes;
  UpdateSample sample; ///< of the largest group
};

bool updates_elements_alone(
    const sharding::ParamGroup& group,
    const OptimizerRules& optimizer) {
  return std::all_of(
      group.parameters().begin(),
      group.parameters().end(),
      [&](const sharding::PagedParameter& parameter) {
        return updates_elements_alone(
            optimizer.settings_for(parameter.record.names).rule);
      });
}

at::ScalarType master_type(const sharding::ParamGroup& group) {
  return group.master_dtype() == at::kDouble ? at::kDouble : at::kFloat;
}

double size_of(at::ScalarType dtype) {
  return static_cast<double>(c10::elementSize(dtype));
}

UpdateSample sample_of(
    const sharding::ParamGroup& group,
    const sharding::GradientBucket& bucket,
    const OptimizerRules& optimizer) {
  UpdateSample sample;
  sample.rule =
      optimizer.settings_for(group.parameters().front().record.names).rule;
  sample.master = master_type(group);
  sample.gradient = is_low_precision(bucket.shard_dtype())
                        ? bucket.shard_dtype()
                        : sample.master;
  sample.moment = optimizer.options().moment_dtype.value_or(sample.master);
  if (is_low_precision(group.dtype())) {
    sample.low_precision = group.dtype();
  }
  return sample;
}

Choices find_choices(
    const sharding::Pager& pager,
    const StateTiers& tiers,
    const OptimizerRules& optimizer) {
  Choices choices;
  int64_t largest = -1;
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    const sharding::ParamGroup& group = *pager.groups()[g];
    if (!group.trainable() || tiers.tier(g) == MemoryTier::kDevice ||
        tiers.shards_are_apart(g) ||
        !updates_elements_alone(group, optimizer)) {
      continue;
    }
    const int64_t numel = group.layout().shard_numel();
    const UpdateSample sample = sample_of(group, *pager.bucket(g), optimizer);
    const auto count = static_cast<double>(numel);
    choices.groups.push_back(g);
    choices.numel.push_back(numel);
    choices.all += numel;
    choices.bytes.gradient += count * size_of(sample.gradient);
    choices.bytes.weight += count * size_of(group.dtype());
    choices.bytes.state +=
        count * ((group.has_own_master() ? size_of(sample.master) : 0) +
                 max_moments(sample.rule) * size_of(sample.moment));
    if (numel > largest) {
      largest = numel;
      choices.sample = sample;
    }
  }
  const auto all = static_cast<double>(std::max<int64_t>(choices.all, 1));
  choices.bytes.gradient /= all;
  choices.bytes.weight /= all;
  choices.bytes.state /= all;
  return choices;
}

/// The rates of the slowest rank, so that all ranks choose the same.
UpdateRates agree(sharding::Pager& pager, const UpdateRates& own) {
  const at::Tensor values = at::tensor(
      {own.cpu_element,
       own.device_element,
       own.byte_to_device,
       own.byte_to_host},
      at::kDouble);
  pager.max_over_ranks(values);
  const auto* slowest = values.const_data_ptr<double>();
  return {slowest[0], slowest[1], slowest[2], slowest[3]};
}

/// "3.2M" instead of "3.2e+06".
std::string short_count(double count) {
  std::ostringstream out;
  out << std::setprecision(3);
  if (count >= 1e9) {
    out << count / 1e9 << "G";
  } else if (count >= 1e6) {
    out << count / 1e6 << "M";
  } else {
    out << count;
  }
  return out.str();
}

} // namespace

UpdatePlan plan_updates(
    sharding::Pager& pager,
    StateTiers& tiers,
    const OptimizerRules& optimizer,
    const OffloadOptions& offload) {
  UpdatePlan plan;
  plan.streams.assign(pager.groups().size(), false);
  const Choices choices = find_choices(pager, tiers, optimizer);
  if (choices.all == 0 || tiers.device_stage_bytes() == 0) {
    return plan;
  }
  if (offload.ratio) {
    plan.ratio = *offload.ratio;
  } else {
    plan.rates = agree(
        pager,
        measure_rates(
            choices.sample,
            tiers.host_memory(),
            pager.groups().front()->device(),
            choices.all));
    plan.ratio = best_ratio(*plan.rates, choices.bytes);
  }
  const std::vector<bool> by_cpu = divide_updates(choices.numel, plan.ratio);
  for (size_t i = 0; i < by_cpu.size(); ++i) {
    plan.streams[choices.groups[i]] = !by_cpu[i];
  }
  return plan;
}

std::string update_table(
    const UpdatePlan& plan,
    const sharding::Pager& pager,
    const StateTiers& tiers) {
  struct Row {
    int64_t groups = 0;
    int64_t numel = 0;
  };
  constexpr const char* kUpdaters[] = {
      "updated in place", "updated on the CPU", "streamed through the device"};
  Row rows[kMemoryTierCount][std::size(kUpdaters)];
  bool any = false;
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    const sharding::ParamGroup& group = *pager.groups()[g];
    if (group.trainable()) {
      const MemoryTier tier = tiers.tier(g);
      any = any || tier != MemoryTier::kDevice;
      const int updater =
          tier == MemoryTier::kDevice ? 0 : (plan.streams[g] ? 2 : 1);
      Row& row = rows[static_cast<size_t>(tier)][updater];
      ++row.groups;
      row.numel += group.layout().shard_numel();
    }
  }
  if (!any) {
    return "";
  }
  std::ostringstream out;
  out << "optimizer state of this rank, by memory tier and place of update";
  for (size_t tier = 0; tier < kMemoryTierCount; ++tier) {
    for (size_t updater = 0; updater < std::size(kUpdaters); ++updater) {
      const Row& row = rows[tier][updater];
      if (row.groups > 0) {
        out << "\n  " << std::left << std::setw(8)
            << name_of(static_cast<MemoryTier>(tier)) << std::setw(29)
            << kUpdaters[updater] << std::right << std::setw(5) << row.groups
            << " groups " << std::setw(8)
            << short_count(static_cast<double>(row.numel)) << " elements";
      }
    }
  }
  out << "\n  offload.ratio " << std::setprecision(2) << plan.ratio;
  if (plan.rates) {
    const UpdateRates& rates = *plan.rates;
    out << ", measured: the CPU updates " << short_count(1 / rates.cpu_element)
        << " elements/s and the device "
        << short_count(1 / rates.device_element) << " elements/s; "
        << short_count(1 / rates.byte_to_device)
        << " bytes/s are copied to the device and "
        << short_count(1 / rates.byte_to_host) << " bytes/s back";
  }
  return out.str();
}

} // namespace tessera::engine
