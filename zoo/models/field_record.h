// SPDX-License-Identifier: Apache-2.0
#pragma once
// What was read of a config.json, for messages about a model whose layers or
// weights do not fit it: they know sizes, and not whose they are.

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo {

class FieldRecord {
 public:
  /// Keeps a field's value; null stands for one that is not given.
  void add(const std::string& name, nlohmann::json value);

  /// "hidden_size 24, n_inner not given", in the order of reading.
  std::string text() const;

 private:
  std::vector<std::pair<std::string, nlohmann::json>> fields_;
};

} // namespace tessera::zoo
