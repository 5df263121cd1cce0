// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OptionPaths` knows the path of the field that it is shown. For option_*.cpp
// only.

#include "tessera/runtime/core/option_fields.h"

#include <string>
#include <vector>

namespace tessera::runtime {

/// Shows all objects that have a value, and all elements of lists.
class OptionPaths : public OptionFields {
 protected:
  /// @param path of the struct.
  explicit OptionPaths(const std::string& path) : open_{path} {}

  /// Of a field of the object that is open: "optimizer.parameters.0.pattern".
  std::string path_of(const std::string& key) const {
    return open_.back().empty() ? key : open_.back() + "." + key;
  }

  bool has_object(OptionKey /*key*/, bool has_value) override {
    return has_value;
  }
  void begin_object(const OptionField& field) override {
    open_.push_back(path_of(field.key.name));
  }
  void end_object() override {
    open_.pop_back();
  }
  size_t begin_list(const OptionField& field, size_t size) override {
    begin_object(field);
    return size;
  }
  void begin_element(size_t index) override {
    open_.push_back(path_of(std::to_string(index)));
  }
  void end_list() override {
    end_object();
  }

 private:
  std::vector<std::string> open_; ///< paths of the objects around the field
};

} // namespace tessera::runtime
