// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameters on their way into tensors of files that hold several of them.

#include "tessera/zoo/models/name_table.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Keeps parameters, which come one at a time and in any order, until all that
/// are in one tensor are here.
class WaitingParts {
 public:
  /// @param place of the parameter among weight.ours.
  /// @param value copied if it has to wait.
  /// @return all of weight.ours with the last of them, else nothing.
  std::vector<at::Tensor> add(
      const NamedWeight& weight,
      size_t place,
      const at::Tensor& value);

  /// The name of a tensor that is not complete; empty where all are.
  std::string incomplete() const {
    return waiting_.empty() ? std::string() : waiting_.begin()->first;
  }

 private:
  std::map<std::string, std::vector<at::Tensor>> waiting_; ///< by their name
};

} // namespace tessera::zoo
