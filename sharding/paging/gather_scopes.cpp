// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/gather_scopes.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/paging/held_pages.h"

#include <ATen/ops/empty.h>

#include <string>

namespace tessera::sharding {

void GatherScopes::pin(const std::vector<Page*>& pages, bool writable) {
  std::vector<Page*> held;
  try {
    unsharder_.issue_gathers();
    for (Page* const next : pages) {
      Page& page = *next;
      if (page.residency() == Residency::kUnsharding) {
        unsharder_.wait_ready(page);
      }
      unsharder_.settle_shard(page);
      if (page.spec().gather_format) {
        // Operators may have it unsharded, with rounded weights.
        unsharder_.reshard(page);
      }
      if (page.residency() == Residency::kSharded) {
        reducer_.agree({RankIntent::Kind::kGatherScope, page.number(), -1});
        unsharder_.unshard_outside(page);
      }
      ++page.pins.all;
      page.pins.writable += writable ? 1 : 0;
      held.push_back(next);
    }
  } catch (...) {
    unpin(held, writable, /*on_all_stages=*/false);
    throw;
  }
}

void GatherScopes::unpin(
    const std::vector<Page*>& pages,
    bool writable,
    bool on_all_stages) noexcept {
  if (writable && !pages.empty()) {
    WrittenValues& written = context_.ranks->written();
    written.is_pending = true;
    written.on_all_stages |= on_all_stages;
  }
  for (Page* const next : pages) {
    Page& page = *next;
    if (writable) {
      --page.pins.writable;
      write_back(page);
      page.bump_versions();
      page.pins.written =
          page.ranks.is_divided() || page.spec().resting_format.has_value();
    }
    // A slot outside the arena exists only for the scope. A page that was
    // written is dropped as well: only this rank's slice of it is known to
    // equal that of the other ranks, and blocks round it. Other pages stay as
    // long as the plan keeps them.
    if (--page.pins.all == 0 && (page.slot_is_outside() || page.pins.written)) {
      page.pins.written = false;
      unsharder_.reshard(page);
    }
  }
}

/// Does not throw, because it runs at the end of a scope: if the values cannot
/// be stored, the job ends.
void GatherScopes::write_back(Page& page) noexcept {
  try {
    unsharder_.settle_shard(page);
    add_hashes(page, page.full(), context_.ranks->written());
    page.write_back();
  } catch (const std::exception& error) {
    const std::string message = "the values written to group '" + page.name() +
                                "' are lost: " + error.what();
    log_error("{}", message);
    page.lose_values(message);
    context_.ranks->abandon(message);
  }
}

void GatherScopes::add_hashes(
    const Page& page,
    const at::Tensor& full,
    WrittenValues& written) const {
  const bool has_copies = page.ranks.copies() != nullptr;
  if (context_.ranks->size() == 1 && !has_copies) {
    return;
  }
  written.of_copies |= has_copies;
  ValueHashes& hashes =
      page.spec().of_experts ? written.experts : written.values;
  for (size_t i = 0; i < page.parameters().size(); ++i) {
    hashes.add(page.parameters()[i].record.name(), page.view_of(full, i));
  }
}

at::Tensor GatherScopes::gather(
    const Page& page,
    const at::Tensor& shard,
    const std::string& label) {
  if (!page.ranks.is_divided()) {
    return shard;
  }
  const at::Tensor full =
      at::empty({page.layout().padded_numel()}, shard.options());
  page.ranks.shards()
      .all_gather(full, shard, label)
      .wait(context_.ranks->watch_failures());
  return full;
}

at::Tensor GatherScopes::read_master(Page& page) {
  unsharder_.settle_shard(page);
  return page.read_master();
}

void GatherScopes::write_master(Page& page, const at::Tensor& values) {
  page.write_master(values);
}

at::Tensor GatherScopes::gather_master(Page& page) {
  return gather(page, read_master(page), "values of '" + page.name() + "'");
}

at::Tensor GatherScopes::full_master(Page& page) {
  reducer_.agree({RankIntent::Kind::kGatherScope, page.number(), -1});
  return gather_master(page);
}

at::Tensor GatherScopes::full_gradient(size_t parameter) {
  const auto& [page, position] = context_.pages.entries()[parameter];
  const GradientBucket* bucket = page.gradients.get();
  if (bucket == nullptr || !bucket->has_gradient(position)) {
    return {};
  }
  unsharder_.settle_shard(page); // readers of the gradients have finished too
  const at::Tensor shard = bucket->shard().load(page.device());
  const at::Tensor full = gather(
      page,
      shard,
      "gradient of '" + context_.pages.parameter(parameter).record.name() +
          "'");
  return page.view_of(full, position).mul(bucket->factor());
}

void GatherScopes::restore_all() {
  check_none_held(context_.pages, "unwrap");
  unsharder_.reshard_all();
  for (const auto& page : context_.pages) {
    const at::Tensor full = gather_master(*page);
    if (page->gradients) {
      page->gradients->retire();
    }
    unsharder_.restore(*page, full);
  }
}

} // namespace tessera::sharding
