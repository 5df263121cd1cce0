// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_check.h"

#include <cmath>

#include "tessera/runtime/core/config_values.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_paths.h"
#include "tessera/runtime/core/option_values.h"
#include "tessera/runtime/core/suggest.h"

namespace tessera::runtime {

namespace {

using nlohmann::json;

class OptionCheck final : public OptionPaths {
 public:
  explicit OptionCheck(const std::string& path) : OptionPaths(path) {}

 private:
  void on_value(const OptionField& field, json& value) override {
    const std::string path = path_of(field.key.name);
    if (value.is_structured()) {
      for (const auto& [key, one] : value.items()) {
        check(path + "." + key, field, one);
      }
    } else if (!value.is_null()) {
      check(path, field, value);
    }
  }

  static void check(
      const std::string& path,
      const OptionField& field,
      const json& value) {
    if (field.kind == OptionKind::kInt || field.kind == OptionKind::kBytes) {
      const auto number = value.get<int64_t>();
      TESSERA_CHECK(
          detail::contains(field.integers, number),
          "{} is {}; expected {}{}",
          path,
          number,
          detail::in_range("an integer", field.integers),
          explanation(field));
    } else if (field.kind == OptionKind::kNumber) {
      const auto number = value.get<double>();
      const bool finite = std::isfinite(number);
      TESSERA_CHECK(
          finite && detail::contains(field.numbers, number),
          "{} is {}; expected {}{}{}",
          path,
          number,
          detail::in_range(
              finite ? "a number" : "a finite number", field.numbers),
          field.word == nullptr
              ? ""
              : formatted(", or no value (\"{}\")", field.word),
          explanation(field));
    } else if (field.kind == OptionKind::kChoice) {
      TESSERA_CHECK(
          std::find(field.names.begin(), field.names.end(), value) !=
              field.names.end(),
          "{} is {}; expected one of {}{}",
          path,
          value.get<std::string>(),
          join_names(field.names),
          explanation(field));
    }
  }
};

} // namespace

void check_list(const std::string& path, const OptionList& list) {
  OptionCheck fields(path);
  list(fields);
}

} // namespace tessera::runtime
