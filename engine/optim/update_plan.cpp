// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/update_plan.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/report/progress_line.h"
#include "tessera/offload/stores/host_memory.h"
#include "tessera/offload/updates/update_rates.h"
#include "tessera/runtime/memory/tensor_bytes.h"

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
  offload::UpdateBytes bytes;
  offload::UpdateSample sample; ///< of the largest group
};

bool updates_elements_alone(
    const sharding::PageSpec& page,
    const OptimizerRules& optimizer) {
  return std::all_of(
      page.parameters.begin(),
      page.parameters.end(),
      [&](const sharding::PagedParameter& parameter) {
        return updates_elements_alone(
            optimizer.settings_for(parameter.record.spec.names).rule);
      });
}

offload::UpdateSample sample_of(
    const sharding::PageSpec& page,
    const OptimizerRules& optimizer) {
  const UpdateRule rule =
      optimizer.settings_for(page.parameters.front().record.spec.names).rule;
  return {
      .types = update_types(page, optimizer),
      .moments = rule.optimizer().max_moments(rule.options()),
      .update = [rule](const runtime::UpdateTensors& tensors) {
        rule.optimizer().update(tensors, rule.options());
      }};
}

bool has_choice(
    const sharding::PageSpec& page,
    const runtime::ShardTiers& tiers) {
  return page.trainable && tiers.state != MemoryTier::kDevice &&
         tiers.parameters == MemoryTier::kDevice &&
         tiers.gradients == MemoryTier::kDevice;
}

Choices find_choices(
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierPlan& tiers,
    const OptimizerRules& optimizer) {
  Choices choices;
  int64_t largest = -1;
  for (size_t g = 0; g < pages.size(); ++g) {
    const sharding::PageSpec& page = pages[g];
    if (!has_choice(page, tiers.pages[g]) ||
        !updates_elements_alone(page, optimizer)) {
      continue;
    }
    const int64_t numel = page.layout.shard_numel();
    const offload::UpdateSample sample = sample_of(page, optimizer);
    const offload::UpdateTypes& types = sample.types;
    const auto count = static_cast<double>(numel);
    choices.groups.push_back(g);
    choices.numel.push_back(numel);
    choices.all += numel;
    choices.bytes.gradient += count * runtime::size_of(types.gradient);
    choices.bytes.weight += count * runtime::size_of(types.weight);
    choices.bytes.state +=
        count *
        ((page.has_separate_master ? runtime::size_of(types.master) : 0) +
         sample.moments * runtime::size_of(types.moment));
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
offload::UpdateRates agree(
    sharding::PageRanks& ranks,
    const offload::UpdateRates& local) {
  const at::Tensor values = at::tensor(
      {local.cpu_element,
       local.device_element,
       local.byte_to_device,
       local.byte_to_host},
      at::kDouble);
  ranks.max(values);
  const auto* slowest = values.const_data_ptr<double>();
  return {slowest[0], slowest[1], slowest[2], slowest[3]};
}

UpdateOverlap overlap_of(
    const OptimizerOptions& options,
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierPlan& tiers) {
  if (options.overlap != UpdateOverlap::kAutomatic) {
    return options.overlap;
  }
  for (size_t g = 0; g < pages.size(); ++g) {
    if (pages[g].trainable && tiers.pages[g].state != MemoryTier::kDevice) {
      return UpdateOverlap::kWait;
    }
  }
  return UpdateOverlap::kOff;
}

} // namespace

offload::UpdateTypes update_types(
    const sharding::PageSpec& page,
    const OptimizerRules& rules) {
  return {page.dtype, page.gradients.shard, rules.options().moment_dtype};
}

UpdatePlan plan_updates(
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierPlan& tiers,
    const OptimizerRules& optimizer,
    const OffloadOptions& offload,
    const MemoryBudget& memory,
    sharding::PageRanks& ranks) {
  UpdatePlan plan;
  plan.streams.assign(pages.size(), false);
  plan.overlap = overlap_of(optimizer.options(), pages, tiers);
  const Choices choices = find_choices(pages, tiers, optimizer);
  if (choices.all == 0 || !tiers.may_stream) {
    return plan;
  }
  if (offload.ratio) {
    plan.ratio = *offload.ratio;
  } else {
    const c10::Device device = pages.front().device;
    MemoryLedger uncounted;
    offload::HostMemory host({memory.host_bytes, device}, uncounted);
    plan.rates = agree(
        ranks,
        offload::measure_rates(choices.sample, host, device, choices.all));
    plan.ratio = offload::best_ratio(*plan.rates, choices.bytes);
  }
  const std::vector<bool> by_cpu =
      offload::divide_updates(choices.numel, plan.ratio);
  for (size_t i = 0; i < by_cpu.size(); ++i) {
    plan.streams[choices.groups[i]] = !by_cpu[i];
  }
  return plan;
}

std::string update_table(
    const UpdatePlan& plan,
    const std::vector<sharding::PageSpec>& pages,
    const offload::TierPlan& tiers) {
  struct Row {
    int64_t groups = 0;
    int64_t numel = 0;
  };
  constexpr const char* kUpdaters[] = {
      "updated in place", "updated on the CPU", "streamed through the device"};
  Row rows[kMemoryTierCount][std::size(kUpdaters)];
  bool any = false;
  for (size_t g = 0; g < pages.size(); ++g) {
    if (pages[g].trainable) {
      const MemoryTier tier = tiers.pages[g].state;
      any = any || tier != MemoryTier::kDevice;
      const int updater =
          tier == MemoryTier::kDevice ? 0 : (plan.streams[g] ? 2 : 1);
      Row& row = rows[static_cast<size_t>(tier)][updater];
      ++row.groups;
      row.numel += pages[g].layout.shard_numel();
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
            << format_count(static_cast<double>(row.numel)) << " elements";
      }
    }
  }
  out << "\n  offload.ratio " << std::setprecision(2) << plan.ratio;
  if (plan.rates) {
    const offload::UpdateRates& rates = *plan.rates;
    out << ", measured: the CPU updates " << format_count(1 / rates.cpu_element)
        << " elements/s and the device "
        << format_count(1 / rates.device_element) << " elements/s; "
        << format_count(1 / rates.byte_to_device)
        << " bytes/s are copied to the device and "
        << format_count(1 / rates.byte_to_host) << " bytes/s back";
  }
  return out.str();
}

} // namespace tessera::engine
