// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/gather_scopes.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <ATen/ops/empty.h>

#include <string>

namespace tessera::sharding {

void GatherScopes::pin(const std::vector<size_t>& groups, bool writable) {
  std::vector<size_t> held;
  try {
    unsharder_.issue_gathers();
    for (const size_t g : groups) {
      PagedGroup& page = context_.pages[g];
      if (page.residency() == Residency::kUnsharding) {
        unsharder_.wait_ready(g);
      }
      unsharder_.settle_shard(g);
      if (page.spec().gather_format) {
        // Operators may have it unsharded, with rounded weights.
        unsharder_.reshard(g);
      }
      if (page.residency() == Residency::kSharded) {
        reducer_.agree(
            {RankIntent::Kind::kGatherScope, static_cast<int64_t>(g), -1});
        unsharder_.unshard_outside(g);
      }
      ++page.pins.all;
      page.pins.writable += writable ? 1 : 0;
      held.push_back(g);
    }
  } catch (...) {
    unpin(held, writable);
    throw;
  }
}

void GatherScopes::unpin(
    const std::vector<size_t>& groups,
    bool writable) noexcept {
  for (const size_t g : groups) {
    PagedGroup& page = context_.pages[g];
    if (writable) {
      --page.pins.writable;
      write_back(page);
      page.bump_versions();
      page.pins.written = page.ranks.is_divided();
    }
    // A slot outside the arena exists only for the scope. A page that was
    // written is dropped as well: only this rank's slice of it is known to
    // equal that of the other ranks. Other pages stay as long as the plan keeps
    // them.
    if (--page.pins.all == 0 && (page.slot_is_outside() || page.pins.written)) {
      page.pins.written = false;
      unsharder_.reshard(g);
    }
  }
}

/// Does not throw, because it runs at the end of a scope: if the values cannot
/// be stored, the job ends.
void GatherScopes::write_back(PagedGroup& page) noexcept {
  try {
    unsharder_.settle_shard(static_cast<size_t>(page.number()));
    page.write_back();
  } catch (const std::exception& error) {
    const std::string message = "the values written to group '" + page.name() +
                                "' are lost: " + error.what();
    log_error("{}", message);
    page.lose_values(message);
    context_.ranks->abandon(message);
  }
}

at::Tensor GatherScopes::gather(
    const PagedGroup& page,
    const at::Tensor& shard,
    const std::string& what) {
  if (!page.ranks.is_divided()) {
    return shard;
  }
  const at::Tensor whole =
      at::empty({page.layout().padded_numel()}, shard.options());
  page.ranks.shards()
      .all_gather(whole, shard, what)
      .wait(context_.ranks->watch_failures());
  return whole;
}

at::Tensor GatherScopes::gather_master(size_t g) {
  const PagedGroup& page = context_.pages[g];
  return gather(page, master_shard(g), "values of '" + page.name() + "'");
}

at::Tensor GatherScopes::master_shard(size_t g) {
  unsharder_.settle_shard(g);
  return context_.pages[g].read_master();
}

at::Tensor GatherScopes::whole_master(size_t g) {
  reducer_.agree({RankIntent::Kind::kGatherScope, static_cast<int64_t>(g), -1});
  return gather_master(g);
}

at::Tensor GatherScopes::whole_gradient(size_t parameter) {
  const auto& [g, position] = context_.pages.places()[parameter];
  const PagedGroup& page = context_.pages[g];
  const GradientBucket* bucket = page.gradients.get();
  if (bucket == nullptr || !bucket->has_gradient(position)) {
    return {};
  }
  unsharder_.settle_shard(g); // readers of the gradients have finished too
  const at::Tensor shard = bucket->shard().load(page.device());
  const at::Tensor whole = gather(
      page,
      shard,
      "gradient of '" + context_.pages.parameter(parameter).record.name() +
          "'");
  return page.view_of(whole, position).mul(bucket->factor());
}

void GatherScopes::restore_all() {
  for (const auto& page : context_.pages.pages()) {
    TESSERA_CHECK(
        page->pins.all == 0,
        "unwrap: group '{}' is held by a gather scope; end it first.",
        page->name());
  }
  unsharder_.reshard_all();
  for (size_t g = 0; g < context_.pages.size(); ++g) {
    const at::Tensor whole = gather_master(g);
    if (GradientBucket* bucket = context_.pages.bucket(g)) {
      bucket->retire();
    }
    unsharder_.restore(g, whole);
  }
}

} // namespace tessera::sharding
