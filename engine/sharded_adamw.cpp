// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/sharded_adamw.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <unordered_map>

namespace tessera {

namespace {

/// True when no storage of the group has an element outside its trainable
/// parameters.
bool is_seamless(const ParamGroup& group) {
  std::unordered_map<const c10::StorageImpl*, int64_t> uncovered;
  for (const auto& parameter : group.parameters()) {
    const at::Tensor& tensor = parameter.record.tensor;
    if (!tensor.requires_grad()) {
      return false;
    }
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    const auto whole = static_cast<int64_t>(storage->nbytes()) /
                       static_cast<int64_t>(tensor.itemsize());
    uncovered.emplace(storage, whole).first->second -= tensor.numel();
  }
  return std::all_of(uncovered.begin(), uncovered.end(), [](const auto& item) {
    return item.second == 0;
  });
}

} // namespace

void ShardedAdamW::check(const AdamWOptions& options) {
  TESSERA_CHECK(
      options.lr >= 0, "AdamW: lr is ", options.lr, "; it must be at least 0.");
  TESSERA_CHECK(
      options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 &&
          options.beta2 < 1,
      "AdamW: betas are (",
      options.beta1,
      ", ",
      options.beta2,
      "); each must be at least 0 and below 1.");
  TESSERA_CHECK(
      options.eps > 0, "AdamW: eps is ", options.eps, "; it must be above 0.");
  TESSERA_CHECK(
      options.weight_decay >= 0,
      "AdamW: weight_decay is ",
      options.weight_decay,
      "; it must be at least 0.");
}

ShardedAdamW::ShardedAdamW(
    Pager& pager,
    const AdamWOptions& options,
    MemoryLedger& ledger)
    : pager_(pager), options_(options) {
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    groups_.push_back(make_state(g, ledger));
  }
}

ShardedAdamW::GroupState ShardedAdamW::make_state(
    size_t g,
    MemoryLedger& ledger) const {
  const ParamGroup& group = *pager_.groups()[g];
  GroupState state;
  if (!group.trainable()) {
    return state;
  }
  state.adamw = std::make_unique<HostAdamW>(group.master(), ledger);
  std::vector<FlatSpan> spans;
  for (const auto& parameter : group.parameters()) {
    spans.push_back(parameter.span);
  }
  state.runs = runs_of_shard(spans, group.layout().shard(pager_.rank()));
  state.steps.resize(spans.size());
  state.seamless = is_seamless(group);
  return state;
}

int64_t ShardedAdamW::state_bytes(const Pager& pager) {
  int64_t bytes = 0;
  for (const auto& group : pager.groups()) {
    if (group->trainable()) {
      bytes += HostAdamW::state_bytes(group->master());
    }
  }
  return bytes;
}

void ShardedAdamW::step(double gradient_factor) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].adamw) {
      step_group(g, gradient_factor);
    }
  }
}

void ShardedAdamW::step_group(size_t g, double gradient_factor) {
  GroupState& state = groups_[g];
  ParamGroup& group = *pager_.groups()[g];
  const GradientBucket& bucket = *pager_.bucket(g);
  if (state.write_backs != group.write_backs()) {
    state.adamw->reload_master();
    state.write_backs = group.write_backs();
  }
  bool together = state.seamless;
  for (size_t i = 0; i < state.steps.size(); ++i) {
    if (bucket.has_gradient(i)) {
      ++state.steps[i];
    } else {
      together = false;
    }
    together = together && state.steps[i] == state.steps[0];
  }
  const auto update = [&](FlatSpan span, int64_t step) {
    AdamWStep hyper;
    hyper.lr = options_.lr;
    hyper.beta1 = options_.beta1;
    hyper.beta2 = options_.beta2;
    hyper.eps = options_.eps;
    hyper.weight_decay = options_.weight_decay;
    hyper.step = step;
    hyper.grad_scale = gradient_factor * bucket.factor();
    state.adamw->update(bucket.shard(), span, hyper);
  };
  if (together) {
    update({0, group.layout().shard_numel()}, state.steps[0]);
    group.round_master();
    state.write_backs = group.write_backs();
    return;
  }
  for (const FlatRun& run : state.runs) {
    if (bucket.has_gradient(run.parameter)) {
      update({run.shard_offset, run.numel}, state.steps[run.parameter]);
    }
  }
  group.round_master();
  state.write_backs = group.write_backs();
}

} // namespace tessera
