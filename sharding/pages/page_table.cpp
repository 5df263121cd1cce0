// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/page_table.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <utility>

namespace tessera::sharding {

void PageTable::add(std::unique_ptr<PagedGroup> page) {
  const size_t g = pages_.size();
  const size_t first = page->parameters().front().index;
  for (const PagedParameter& parameter : page->parameters()) {
    for (const std::string& name : parameter.record.spec.names) {
      by_name_.emplace(name, parameter.index);
    }
    places_.push_back({g, parameter.index - first});
  }
  pages_.push_back(std::move(page));
}

const PagedParameter& PageTable::parameter(size_t index) const {
  const ParameterPlace& place = places_[index];
  return pages_[place.group]->parameters()[place.position];
}

size_t PageTable::find(const std::string& name) const {
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    return found->second;
  }
  std::vector<std::string> all_names;
  for (size_t i = 0; i < places_.size(); ++i) {
    const std::vector<std::string>& names = parameter(i).record.spec.names;
    all_names.insert(all_names.end(), names.begin(), names.end());
  }
  const std::string nearest = runtime::nearest_name(name, all_names);
  TESSERA_FAIL(
      "there is no parameter '{}' in this engine{}",
      name,
      nearest.empty() ? "." : "; did you mean '" + nearest + "'?");
}

size_t PageTable::find(const at::Tensor& tensor) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (parameter(i).record.tensor.is_same(tensor)) {
      return i;
    }
  }
  TESSERA_FAIL(
      "the given tensor of shape {} is not a parameter of this engine. Pass the tensor that the module registered, not a view or copy of it.",
      tensor.sizes());
}

void PageTable::check_identity() const {
  for (const auto& page : pages_) {
    page->check_identity();
  }
}

void PageTable::forget_parameters() {
  places_.clear();
  by_name_.clear();
}

} // namespace tessera::sharding
