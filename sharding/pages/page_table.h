// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PageTable` lists the pages of a module, and finds the place of a parameter
// in them.

#include "tessera/sharding/pages/page.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::sharding {

/// The place of a parameter.
struct ParameterEntry {
  Page& page;
  size_t position = 0; ///< in the page's parameter list
};

class PageTable {
 public:
  /// Adds the next page; pages come in the order of their numbers.
  void add(std::unique_ptr<Page> page);

  size_t size() const {
    return pages_.size();
  }
  /// A page by its number.
  Page& operator[](size_t number) const {
    return *pages_[number];
  }
  Page& operator[](int number) const {
    return *pages_[static_cast<size_t>(number)];
  }
  std::vector<std::unique_ptr<Page>>::const_iterator begin() const {
    return pages_.begin();
  }
  std::vector<std::unique_ptr<Page>>::const_iterator end() const {
    return pages_.end();
  }

  /// Per parameter, by its index.
  const std::vector<ParameterEntry>& entries() const {
    return entries_;
  }
  const PagedParameter& parameter(size_t index) const;
  /// Returns the gradients among which those of the parameter are, or null.
  GradientBucket* bucket_of(size_t parameter) const {
    return entries_[parameter].page.gradients.get();
  }
  /// Returns the index of a parameter by any of its names.
  /// @throws tessera::Error naming the nearest.
  size_t find(const std::string& name) const;
  /// Returns the index of a parameter by tensor.
  /// @throws tessera::Error when it is not one.
  size_t find(const at::Tensor& tensor) const;

  /// True when some parameter has got a gradient, on any rank.
  bool any_gradient() const;
  /// Returns whether a page was updated with its gradients since the last step.
  bool updated_in_backward() const;
  /// A parameter whose settled gradient has something of another backward
  /// ([Note: backwards of the engine]); nothing: none has.
  std::optional<size_t> find_other_backward() const;
  /// A page whose gradients the user has dropped after they were applied; null:
  /// there is none. For settled gradients.
  const Page* find_lost_update() const;
  /// Multiplies all settled gradients; the multiplication is deferred to the
  /// next reader.
  void multiply_gradients(const DeferredScalar& factor) const;

  /// @throws tessera::Error when a parameter's storage was replaced.
  void check_identity() const;

  /// Forgets the parameters, which are no longer paged.
  void forget_parameters();

 private:
  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<ParameterEntry> entries_;
  /// Index in places_, under each name that a parameter is registered under.
  std::unordered_map<std::string, size_t> by_name_;
};

} // namespace tessera::sharding
