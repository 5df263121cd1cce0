// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_fields()` checks the ranges of an options struct that a program set.

#include "tessera/runtime/core/option_fields.h"

#include <string>
#include <vector>

namespace tessera::runtime {

/// Checks each field against the range in its list.
class OptionCheck final : public OptionFields {
 public:
  /// @param path of the struct in a configuration.
  explicit OptionCheck(const std::string& path) : open_{path} {}

 private:
  void on_bool(const OptionField& field, std::optional<bool>& value) override;
  void on_int(const OptionField& field, std::optional<int64_t>& value) override;
  void on_bytes(const OptionField& field, std::optional<int64_t>& value)
      override;
  void on_number(const OptionField& field, std::optional<double>& value)
      override;
  void on_string(const OptionField& field, std::optional<std::string>& value)
      override;
  void on_strings(const OptionField& field, std::vector<std::string>& value)
      override;
  void on_ints(const OptionField& field, std::vector<int64_t>& value) override;
  void on_numbers(const OptionField& field, std::vector<double>& value)
      override;
  void on_choice(
      const OptionField& field,
      const std::vector<std::string>& names,
      std::optional<size_t>& chosen,
      bool is_set) override;
  bool has_object(OptionKey key, bool has_value) override;
  void begin_object(const OptionField& field) override;
  void end_object() override;
  size_t begin_list(const OptionField& field, size_t size) override;
  void begin_element(size_t index) override;
  void end_list() override;

  std::string path_of(const std::string& key) const;

  std::vector<std::string> open_; ///< paths of the objects around the field
};

/// @param path of the struct in a configuration, for messages: "loss_scale".
/// @throws tessera::Error naming path, value and what was expected, in the
///   words of read_fields().
template <typename Options>
void check_fields(const std::string& path, Options options) {
  OptionCheck fields(path);
  visit_fields(fields, options);
}

} // namespace tessera::runtime
