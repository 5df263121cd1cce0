// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tied_parameters.h"

#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/pager.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <sstream>

namespace tessera::sharding {

namespace {

/// Describes the trainable parameters of a pipeline stage, one line each: "name
/// form".
std::string forms_of(const torch::nn::Module& module) {
  std::ostringstream lines;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) {
      lines << item.key() << ' ' << item.value().sizes() << ' '
            << item.value().scalar_type() << '\n';
    }
  }
  return lines.str();
}

std::map<std::string, std::string> parse_forms(const std::string& text) {
  std::map<std::string, std::string> forms;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    forms.emplace(line.substr(0, space), line.substr(space + 1));
  }
  return forms;
}

/// The pages that other pipeline stages have too, by the names of their
/// parameters: all stages go through them in the same order.
std::vector<PagedGroup*> tied_pages(const Pager& pager) {
  std::vector<PagedGroup*> pages;
  for (const auto& page : pager.groups()) {
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

std::map<std::string, std::vector<int>> find_tied_parameters(
    World& world,
    const std::vector<int>& ranks,
    const torch::nn::Module& module) {
  const std::string key = world.unique_name("parameters of pipeline stages");
  if (ranks.size() == 1) {
    return {};
  }
  const auto entry = [&](int rank) { return key + "/" + std::to_string(rank); };
  world.store()->set(entry(world.rank()), runtime::to_bytes(forms_of(module)));
  std::map<std::string, std::vector<int>> owners;
  std::map<std::string, std::string> forms;
  for (const int rank : ranks) {
    for (const auto& [name, form] :
         parse_forms(runtime::to_text(world.store()->get(entry(rank))))) {
      const auto [known, is_new] = forms.emplace(name, form);
      TESSERA_CHECK(
          known->second == form,
          "wrap: the pipeline stages have different parameters named '{}': {} and, on rank {}, {}. Parameters with the same name are one parameter; give different parameters different names.",
          name,
          known->second,
          rank,
          form);
      owners[name].push_back(rank);
    }
  }
  std::erase_if(owners, [&](const auto& owned) {
    const std::vector<int>& have = owned.second;
    return have.size() == 1 ||
           std::find(have.begin(), have.end(), world.rank()) == have.end();
  });
  return owners;
}

void copy_tied_values(Pager& pager) {
  const c10::NoGradGuard no_grad;
  const std::vector<PagedGroup*> pages = tied_pages(pager);
  for (PagedGroup* page : pages) {
    const at::Tensor values = page->read_master();
    const at::Tensor on_device = values.to(page->device());
    page->ranks.copies()
        ->broadcast(
            on_device, 0, "first copy of '" + page->spec().tied_name + "'")
        .wait(pager.watch_failures());
    page->write_master(on_device.to(values.device()));
  }
  if (!pages.empty()) {
    pager.invalidate();
  }
}

void add_tied_gradients(Pager& pager) {
  for (PagedGroup* page : tied_pages(pager)) {
    GradientBucket& bucket = *page->gradients;
    const at::Tensor flags = at::tensor(
        {bucket.got_gradient(0) ? 1 : 0, bucket.has_copies() ? 1 : 0},
        at::kInt);
    page->ranks.copies_control()
        ->all_reduce_max(flags, "agreement on '" + page->spec().tied_name + "'")
        .wait(pager.watch_failures());
    const auto* seen = flags.const_data_ptr<int>();
    if (seen[0] == 0 || seen[1] != 0) {
      continue;
    }
    pager.before_gradients_change(static_cast<size_t>(page->spec().number));
    bucket.add_copies(*page->ranks.copies(), pager.watch_failures());
  }
}

} // namespace tessera::sharding
