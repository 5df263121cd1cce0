// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/tied_copies.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/pages/value_hashes.h"
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

/// @param label of the collective.
/// @param function for errors.
void add_tied_gradients_of(
    Pager& pager,
    Page& page,
    const std::string& label,
    const std::string& function) {
  GradientBucket& bucket = *page.gradients;
  const int passed = bucket.passed_by_user();
  const at::Tensor flags = at::tensor(
      {bucket.got_gradient(0) ? 1 : 0,
       bucket.has_copies() ? 1 : 0,
       passed,
       -passed},
      at::kInt);
  page.ranks.copies_control()
      ->all_reduce_max(flags, label)
      .wait(pager.ranks().stage_waits().watch_copies(
          page.spec().tied_name, function));
  const auto* seen = flags.const_data_ptr<int>();
  if (seen[0] == 0 || seen[1] != 0) {
    return;
  }
  if (seen[2] != -seen[3]) {
    const std::string problem = formatted(
        "Engine::reduce: several pipeline stages have '{}'; on one of them {} gradients were added to it, on another {}. It is one parameter: call reduce() on every stage that has it, with its whole gradient, which is averaged over the ranks of all of them.",
        page.spec().tied_name,
        seen[2],
        -seen[3]);
    pager.ranks().abandon(problem); // stages without it would wait
    TESSERA_FAIL("{}", problem);
  }
  pager.before_gradients_change(page);
  bucket.add_copies(*page.ranks.copies(), pager.ranks().watch_failures());
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
    add_tied_gradients_of(
        pager,
        *page,
        "agreement on '" + page->spec().tied_name + "'",
        "Engine::step");
  }
}

void add_tied_gradients_to_read(Pager& pager, const std::string& function) {
  for (Page* page : tied_pages(pager)) {
    add_tied_gradients_to_read(pager, *page, function);
  }
}

void add_tied_gradients_to_read(
    Pager& pager,
    Page& page,
    const std::string& function) {
  if (page.ranks.copies() == nullptr || page.gradients == nullptr) {
    return;
  }
  page.gradients->refresh(); // sees that the user has dropped them
  if (!page.gradients->has_copies()) {
    add_tied_gradients_of(
        pager,
        page,
        formatted(
            "{}: the sum of the gradients of '{}', for which all pipeline stages that have it call this function",
            function,
            page.spec().tied_name),
        function);
  }
}

std::string find_other_copies(Pager& pager) {
  const c10::NoGradGuard no_grad;
  std::string names;
  for (Page* page : tied_pages(pager)) {
    const std::string& name = page->spec().tied_name;
    ValueHashes values;
    values.add(name, pager.scopes().read_master(*page));
    if (!runtime::are_equal(
            *page->ranks.copies_control(),
            values.to_text(),
            "comparison of the copies of '" + name + "'",
            pager.ranks().watch_failures())) {
      names += (names.empty() ? "'" : ", '") + name + "'";
    }
  }
  return names;
}

} // namespace tessera::sharding
