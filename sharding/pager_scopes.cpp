// SPDX-License-Identifier: Apache-2.0
// `Pager`: whole values outside of a step, i.e. gather scopes and unwrap().
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <ATen/ops/empty.h>

namespace tessera::sharding {

void Pager::pin(const std::vector<size_t>& groups, bool writable) {
  std::vector<size_t> held;
  try {
    issue_gathers();
    for (const size_t g : groups) {
      PagedGroup& group = *groups_[g];
      if (group.residency() == Residency::kUnsharding) {
        wait_ready(static_cast<int>(g));
      }
      settle_shard(g);
      if (group.residency() == Residency::kSharded) {
        agree_joining_reductions(
            {RankIntent::Kind::kGatherScope, static_cast<int64_t>(g), -1});
        begin_unshard(
            group,
            gather_arena_.allocate_outside(
                group.layout().padded_numel(), group.dtype()));
        or_abandon([&] { group.issue_unshard(); });
        group.end_unshard(watch_failures());
      }
      ++group.pins;
      groups_[g]->writable_pins += writable ? 1 : 0;
      held.push_back(g);
    }
  } catch (...) {
    unpin(held, writable);
    throw;
  }
}

void Pager::unpin(const std::vector<size_t>& groups, bool writable) noexcept {
  for (const size_t g : groups) {
    PagedGroup& group = *groups_[g];
    if (writable) {
      --groups_[g]->writable_pins;
      write_back(group);
      gather_lane_.follow_current();
      group.bump_versions();
      group.written = is_divided();
    }
    // A slot outside the arena exists only for the scope. A group that was
    // written is dropped as well: only this rank's slice of it is known to
    // equal that of the other ranks. Other groups stay as long as the plan
    // keeps them.
    if (--group.pins == 0 && (group.slot_is_outside() || group.written)) {
      group.written = false;
      reshard(static_cast<int>(g));
    }
  }
}

/// Does not throw, because it runs at the end of a scope: if the values cannot
/// be stored, the job ends.
void Pager::write_back(PagedGroup& group) noexcept {
  try {
    settle_shard(static_cast<size_t>(group.number()));
    group.write_back();
  } catch (const std::exception& error) {
    const std::string message = "the values written to group '" + group.name() +
                                "' are lost: " + error.what();
    log_error("{}", message);
    group.lose_values(message);
    abandon(message);
  }
}

at::Tensor Pager::gather_master(size_t g) {
  settle_shard(g);
  const at::Tensor master = groups_[g]->read_master();
  if (!is_divided()) {
    return master;
  }
  const at::Tensor whole =
      at::empty({groups_[g]->layout().padded_numel()}, master.options());
  data_->all_gather(whole, master, "values of '" + groups_[g]->name() + "'")
      .wait(watch_failures());
  return whole;
}

at::Tensor Pager::whole_master(size_t g) {
  agree_joining_reductions(
      {RankIntent::Kind::kGatherScope, static_cast<int64_t>(g), -1});
  return gather_master(g);
}

void Pager::unwrap() {
  if (unwrapped_) {
    return;
  }
  agree_joining_reductions({RankIntent::Kind::kUnwrap, -1, -1});
  check_identity();
  finish_reductions();
  for (size_t g = 0; g < groups_.size(); ++g) {
    PagedGroup& group = *groups_[g];
    TESSERA_CHECK(
        group.pins == 0,
        "unwrap: group '{}' is held by a gather scope; end it first.",
        group.name());
  }
  leave_phase();
  remove_hooks();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const at::Tensor whole = gather_master(g);
    if (groups_[g]->gradients) {
      groups_[g]->gradients->retire();
    }
    runtime::Slot slot = groups_[g]->restore(whole, watch_failures());
    if (slot.defined()) {
      gather_arena_.release(slot);
    }
  }
  places_.clear();
  by_name_.clear();
  reading_ = nullptr;
  unwrapped_ = true;
}

} // namespace tessera::sharding
