// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_check.h"

#include "tessera/runtime/core/config_values.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <cmath>

namespace tessera::runtime {

namespace {

void check_int(const std::string& path, int64_t value, const IntRange& range) {
  TESSERA_CHECK(
      detail::contains(range, value),
      "{} is {}; expected {}",
      path,
      value,
      detail::in_range("an integer", range));
}

void check_number(
    const std::string& path,
    double value,
    const DoubleRange& range) {
  TESSERA_CHECK(
      std::isfinite(value) && detail::contains(range, value),
      "{} is {}; expected {}",
      path,
      value,
      detail::in_range(
          std::isfinite(value) ? "a number" : "a finite number", range));
}

} // namespace

std::string OptionCheck::path_of(const std::string& key) const {
  return open_.back().empty() ? key : open_.back() + "." + key;
}

void OptionCheck::on_bool(
    const OptionField& /*field*/,
    std::optional<bool>& /*value*/) {}

void OptionCheck::on_int(
    const OptionField& field,
    std::optional<int64_t>& value) {
  if (value) {
    check_int(path_of(field.key.name), *value, field.integers);
  }
}

void OptionCheck::on_bytes(
    const OptionField& field,
    std::optional<int64_t>& value) {
  on_int(field, value);
}

void OptionCheck::on_number(
    const OptionField& field,
    std::optional<double>& value) {
  if (value) {
    check_number(path_of(field.key.name), *value, field.numbers);
  }
}

void OptionCheck::on_string(
    const OptionField& /*field*/,
    std::optional<std::string>& /*value*/) {}

void OptionCheck::on_strings(
    const OptionField& /*field*/,
    std::vector<std::string>& /*value*/) {}

void OptionCheck::on_ints(
    const OptionField& field,
    std::vector<int64_t>& value) {
  for (size_t i = 0; i < value.size(); ++i) {
    check_int(
        path_of(formatted("{}.{}", field.key.name, i)),
        value[i],
        field.integers);
  }
}

void OptionCheck::on_numbers(
    const OptionField& field,
    std::vector<double>& value) {
  for (size_t i = 0; i < value.size(); ++i) {
    check_number(
        path_of(formatted("{}.{}", field.key.name, i)),
        value[i],
        field.numbers);
  }
}

void OptionCheck::on_choice(
    const OptionField& field,
    const std::vector<std::string>& names,
    std::optional<size_t>& chosen,
    bool is_set) {
  TESSERA_CHECK(
      chosen || !is_set,
      "{} is another value than {}",
      path_of(field.key.name),
      join_names(names));
}

bool OptionCheck::has_object(OptionKey /*key*/, bool has_value) {
  return has_value;
}

void OptionCheck::begin_object(const OptionField& field) {
  open_.push_back(path_of(field.key.name));
}

void OptionCheck::end_object() {
  open_.pop_back();
}

size_t OptionCheck::begin_list(const OptionField& field, size_t size) {
  begin_object(field);
  return size;
}

void OptionCheck::begin_element(size_t index) {
  open_.push_back(path_of(std::to_string(index)));
}

void OptionCheck::end_list() {
  end_object();
}

} // namespace tessera::runtime
