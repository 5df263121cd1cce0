// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/weight_averages.h"

#include "tessera/engine/optim/state_names.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace tessera::engine {

namespace {

/// As other state of the page, but of the master's precision, and never
/// streamed.
offload::UpdateSite average_site(
    const offload::UpdateSite& site,
    const runtime::ShardTiers& tiers) {
  offload::UpdatedShard shard = site.shard();
  shard.types.moment = shard.types.master;
  return {std::move(shard), tiers, /*streams=*/false};
}

} // namespace

WeightAverages::WeightAverages(
    UpdateContext& context,
    std::vector<OptimizedParameter>& parameters,
    const std::vector<runtime::ShardTiers>& tiers,
    const OptimizerOptions& options)
    : context_(context),
      decay_(options.ema_decay),
      warmup_(options.ema_warmup) {
  std::vector<OptimizedParameter*> all;
  for (OptimizedParameter& parameter : parameters) {
    all.push_back(&parameter);
  }
  for (size_t g = 0; g < context.pages.size(); ++g) {
    averages_.emplace_back();
    if (!context.sites[g]) {
      continue;
    }
    Average& average = averages_.back().emplace();
    average.site = std::make_unique<offload::UpdateSite>(
        average_site(*context.sites[g], tiers[g]));
    average.part = make_shard_part(context.pages[g], all);
    // As in the shard, so that whole shards are averaged.
    for (ParameterSegment& segment : average.part.segments) {
      segment.state_offset = segment.shard_offset;
    }
    average.part.state_numel = context.pages[g].layout.shard_numel();
    average.part.state = std::make_unique<offload::StateAccess>(
        *average.site,
        std::vector<std::string>{kAverageState},
        average.part.state_numel,
        /*runs=*/1,
        context.staging,
        context.streamed);
  }
}

void WeightAverages::add_state_bytes(TierBytes& bytes) const {
  for (const auto& average : averages_) {
    if (average) {
      average->part.state->add_bytes(bytes);
    }
  }
}

void WeightAverages::allocate(const StateMemory& memory) {
  for (size_t g = 0; g < averages_.size(); ++g) {
    if (!averages_[g]) {
      continue;
    }
    Average& average = *averages_[g];
    average.access = std::make_unique<offload::ShardAccess>(
        *average.site, memory.shards[g]->shards(), context_.streamed);
    average.part.state->allocate(
        *average.access, memory.stores.store(g), memory.ledger);
  }
}

double WeightAverages::begin_step() {
  const auto n = static_cast<double>(steps_++);
  if (n == 0) {
    return 1;
  }
  return 1 - (warmup_ ? std::min(decay_, (1 + n) / (10 + n)) : decay_);
}

void WeightAverages::update(size_t g, double factor) {
  if (!averages_[g]) {
    return;
  }
  if (context_.sites[g]->streams()) {
    context_.streamed.join(); // its lanes still write the weights
  }
  offload::StateAccess& state = *averages_[g]->part.state;
  const offload::ShardTensors tensors = state.open();
  tensors.state.front().lerp_(tensors.master, factor);
  state.close(/*written=*/{}, /*writes_state=*/true);
}

void WeightAverages::visit_state(StateVisitor& visitor) {
  for (auto& average : averages_) {
    if (!average) {
      continue;
    }
    for (const ParameterSegment& segment : average->part.segments) {
      visitor.elements(
          segment,
          kAverageState,
          average->part.state->stored().front(),
          segment.state_offset);
    }
  }
}

void WeightAverages::exchange(sharding::Pager& pager) {
  const c10::NoGradGuard no_grad;
  const auto exchange_one = [&](sharding::Page& page, bool is_in_use) {
    Average& average = *averages_[static_cast<size_t>(page.number())];
    is_in_use ? give_back(average, page, pager) : use(average, page, pager);
  };
  std::vector<sharding::Page*> exchanged;
  try {
    for (const auto& page : pager.pages()) {
      if (averages_[static_cast<size_t>(page->number())] && steps_ > 0) {
        exchange_one(*page, are_in_use_);
        exchanged.push_back(page.get());
      }
    }
  } catch (...) {
    // E.g. out of memory: all pages have again what they had.
    for (sharding::Page* const page : exchanged) {
      exchange_one(*page, !are_in_use_);
    }
    throw;
  }
  are_in_use_ = !are_in_use_;
}

void WeightAverages::use(
    Average& average,
    sharding::Page& page,
    sharding::Pager& pager) {
  const runtime::RestingTensor& stored = average.part.state->stored().front();
  const at::Tensor master = pager.scopes().read_master(page);
  const bool is_exact = page.master().dtype() == stored.dtype();
  if (!is_exact ||
      (page.has_separate_master() && context_.stochastic_rounding)) {
    average.weights = page.shard().load(at::kCPU).clone();
  }
  const at::Tensor values = stored.load(page.device()).clone();
  if (is_exact) {
    stored.store(master);
  }
  sharding::GatherScopes::write_master(page, values);
}

void WeightAverages::give_back(
    Average& average,
    sharding::Page& page,
    sharding::Pager& pager) {
  const runtime::RestingTensor& stored = average.part.state->stored().front();
  const at::Tensor master = pager.scopes().read_master(page);
  if (page.master().dtype() == stored.dtype()) {
    const at::Tensor values = stored.load(page.device()).clone();
    stored.store(master);
    sharding::GatherScopes::write_master(page, values);
  }
  if (average.weights.defined()) {
    page.shard().store(average.weights);
    average.weights = at::Tensor();
  }
}

} // namespace tessera::engine
