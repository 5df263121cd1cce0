// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WaitingParts` collects parameters until the file tensor that contains them
// is complete.

#include "tessera/zoo/formats/name_table.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Parameters arrive one at a time and in any order.
class WaitingParts {
 public:
  /// @param index of the parameter in weight.ours.
  /// @param value copied if it has to wait.
  /// @return all of weight.ours once the last of them has arrived, else
  ///     nothing.
  std::vector<at::Tensor> add(
      const NamedWeight& weight,
      size_t index,
      const at::Tensor& value);

  /// The name of an incomplete tensor; empty if there is none.
  std::string incomplete() const {
    return waiting_.empty() ? std::string() : waiting_.begin()->first;
  }

 private:
  std::map<std::string, std::vector<at::Tensor>> waiting_; ///< by their name
};

} // namespace tessera::zoo
