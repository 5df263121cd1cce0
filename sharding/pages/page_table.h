// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PageTable` lists the pages of a module, and finds the place of a parameter
// in them.

#include "tessera/sharding/pages/paged_group.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::sharding {

/// The place of a parameter.
struct ParameterPlace {
  size_t group = 0;
  size_t position = 0; ///< in the group's parameter list
};

class PageTable {
 public:
  /// Adds the next page; pages come in the order of their numbers.
  void add(std::unique_ptr<PagedGroup> page);

  size_t size() const {
    return pages_.size();
  }
  PagedGroup& operator[](size_t g) const {
    return *pages_[g];
  }
  const std::vector<std::unique_ptr<PagedGroup>>& pages() const {
    return pages_;
  }
  /// Returns the gradients of page `g`, or null when it is frozen.
  GradientBucket* bucket(size_t g) const {
    return pages_[g]->gradients.get();
  }

  /// Per parameter, by its index.
  const std::vector<ParameterPlace>& places() const {
    return places_;
  }
  const PagedParameter& parameter(size_t index) const;
  /// Returns the gradients among which those of the parameter are, or null.
  GradientBucket* bucket_of(size_t parameter) const {
    return bucket(places_[parameter].group);
  }
  /// Returns the index of a parameter by any of its names.
  /// @throws tessera::Error naming the nearest.
  size_t find(const std::string& name) const;
  /// Returns the index of a parameter by tensor.
  /// @throws tessera::Error when it is not one.
  size_t find(const at::Tensor& tensor) const;

  /// @throws tessera::Error when a parameter's storage was replaced.
  void check_identity() const;

  /// Forgets the parameters, which are no longer paged.
  void forget_parameters();

 private:
  std::vector<std::unique_ptr<PagedGroup>> pages_;
  std::vector<ParameterPlace> places_;
  /// Index in places_, under each name that a parameter is registered under.
  std::unordered_map<std::string, size_t> by_name_;
};

} // namespace tessera::sharding
