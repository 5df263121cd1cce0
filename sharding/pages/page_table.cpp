// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/page_table.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <algorithm>
#include <utility>

namespace tessera::sharding {

void PageTable::add(std::unique_ptr<Page> page) {
  const size_t first = page->parameters().front().index;
  for (const PagedParameter& parameter : page->parameters()) {
    for (const std::string& name : parameter.record.spec.names) {
      by_name_.emplace(name, parameter.index);
    }
    entries_.push_back({*page, parameter.index - first});
  }
  pages_.push_back(std::move(page));
}

const PagedParameter& PageTable::parameter(size_t index) const {
  const ParameterEntry& entry = entries_[index];
  return entry.page.parameters()[entry.position];
}

size_t PageTable::find(const std::string& name) const {
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    return found->second;
  }
  std::vector<std::string> all_names;
  for (size_t i = 0; i < entries_.size(); ++i) {
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
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (parameter(i).record.tensor.is_same(tensor)) {
      return i;
    }
  }
  TESSERA_FAIL(
      "the given tensor of shape {} is not a parameter of this engine. Pass the tensor that the module registered, not a view or copy of it.",
      tensor.sizes());
}

bool PageTable::any_gradient() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const GradientBucket* bucket = bucket_of(i);
    if (bucket != nullptr && bucket->got_gradient(entries_[i].position)) {
      return true;
    }
  }
  return false;
}

bool PageTable::updated_in_backward() const {
  return std::any_of(pages_.begin(), pages_.end(), [](const auto& page) {
    return page->gradients && page->gradients->is_applied();
  });
}

std::optional<size_t> PageTable::find_other_backward() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const GradientBucket* bucket = bucket_of(i);
    if (bucket != nullptr &&
        bucket->is_of_other_backward(entries_[i].position)) {
      return i;
    }
  }
  return std::nullopt;
}

const Page* PageTable::find_lost_update() const {
  for (const auto& page : pages_) {
    if (page->gradients && page->gradients->lost_applied()) {
      return page.get();
    }
  }
  return nullptr;
}

void PageTable::multiply_gradients(const DeferredScalar& factor) const {
  for (const auto& page : pages_) {
    if (page->gradients) {
      page->gradients->multiply(factor);
    }
  }
}

void PageTable::check_identity() const {
  for (const auto& page : pages_) {
    page->check_identity();
  }
}

void PageTable::forget_parameters() {
  entries_.clear();
  by_name_.clear();
}

} // namespace tessera::sharding
