// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_fields()` reads an options struct from a configuration.

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/option_fields.h"

#include <vector>

namespace tessera::runtime {

/// Sets each field from a `ConfigReader`; keys that are absent leave it as it
/// is.
class OptionReader final : public OptionFields {
 public:
  explicit OptionReader(const ConfigReader& reader) : open_{reader} {}

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

  const ConfigReader& reader() const {
    return open_.back();
  }
  template <typename Value, typename Get>
  void read(const OptionField& field, Value& value, const Get& get);

  std::vector<ConfigReader> open_; ///< the objects around the next field
  std::vector<std::vector<ConfigReader>> lists_;
};

/// @throws tessera::Error naming file, path, value and what was expected.
template <typename Options>
void read_fields(const ConfigReader& reader, Options& options) {
  OptionReader fields(reader);
  visit_fields(fields, options);
}

} // namespace tessera::runtime
