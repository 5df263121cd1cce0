// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/tied_copies.h"

#include "tessera/sharding/paging/pager.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

namespace tessera::sharding {

namespace {

/// The pages that other pipeline stages have too, by the names of their
/// parameters: all stages go through them in the same order.
std::vector<Page*> tied_pages(const Pager& pager) {
  std::vector<Page*> pages;
  for (const auto& page : pager.pages()) {
    if (page->ranks.copies() != nullptr) {
      pages.push_back(page.get());
    }
  }
  std::sort(pages.begin(), pages.end(), [](const auto* a, const auto* b) {
    return a->spec().tied_name < b->spec().tied_name;
  });
  return pages;
}

} // namespace

void copy_tied_values(Pager& pager) {
  const c10::NoGradGuard no_grad;
  const std::vector<Page*> pages = tied_pages(pager);
  for (Page* page : pages) {
    const at::Tensor values = pager.scopes().read_master(*page);
    const at::Tensor on_device = values.to(page->device());
    page->ranks.copies()
        ->broadcast(
            on_device, 0, "first copy of '" + page->spec().tied_name + "'")
        .wait(pager.ranks().watch_failures());
    GatherScopes::write_master(*page, on_device.to(values.device()));
  }
  if (!pages.empty()) {
    pager.invalidate();
  }
}

void add_tied_gradients(Pager& pager) {
  for (Page* page : tied_pages(pager)) {
    GradientBucket& bucket = *page->gradients;
    const at::Tensor flags = at::tensor(
        {bucket.got_gradient(0) ? 1 : 0, bucket.has_copies() ? 1 : 0},
        at::kInt);
    page->ranks.copies_control()
        ->all_reduce_max(flags, "agreement on '" + page->spec().tied_name + "'")
        .wait(pager.ranks().watch_failures());
    const auto* seen = flags.const_data_ptr<int>();
    if (seen[0] == 0 || seen[1] != 0) {
      continue;
    }
    pager.before_gradients_change(*page);
    bucket.add_copies(*page->ranks.copies(), pager.ranks().watch_failures());
  }
}

} // namespace tessera::sharding
