// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_reader.h"

namespace tessera::runtime {

/// Calls `get` with the fallback, unless the key is absent and stays so.
template <typename Value, typename Get>
void OptionReader::read(
    const OptionField& field,
    Value& value,
    const Get& get) {
  const OptionKey& key = field.key;
  if (key.required) {
    value = get(Value());
  } else if (value || reader().contains(key.name)) {
    value = get(value);
  }
}

void OptionReader::on_bool(
    const OptionField& field,
    std::optional<bool>& value) {
  read(field, value, [&](const auto& fallback) {
    return reader().get_bool(field.key.name, fallback);
  });
}

void OptionReader::on_int(
    const OptionField& field,
    std::optional<int64_t>& value) {
  read(field, value, [&](const auto& fallback) {
    return reader().get_int(field.key.name, field.integers, fallback);
  });
}

void OptionReader::on_bytes(
    const OptionField& field,
    std::optional<int64_t>& value) {
  read(field, value, [&](const auto& fallback) {
    return reader().get_bytes(field.key.name, field.integers, fallback);
  });
}

void OptionReader::on_number(
    const OptionField& field,
    std::optional<double>& value) {
  const char* const key = field.key.name;
  if (field.word != nullptr && (!value || reader().contains(key))) {
    value = reader().get_double_or(key, field.word, field.numbers);
    return;
  }
  read(field, value, [&](const auto& fallback) {
    return reader().get_double(key, field.numbers, fallback);
  });
}

void OptionReader::on_string(
    const OptionField& field,
    std::optional<std::string>& value) {
  read(field, value, [&](const auto& fallback) {
    return reader().get_string(field.key.name, fallback);
  });
}

void OptionReader::on_strings(
    const OptionField& field,
    std::vector<std::string>& value) {
  const char* const key = field.key.name;
  if (field.one_or_many) {
    value = reader().get_string_or_strings(key, value);
  } else if (field.key.required) {
    value = reader().get_strings(key);
  } else {
    value = reader().get_strings(key, value);
  }
}

void OptionReader::on_ints(
    const OptionField& field,
    std::vector<int64_t>& value) {
  std::optional<std::vector<int64_t>> fallback;
  if (!field.key.required) {
    fallback = value;
  }
  value = reader().get_ints(field.key.name, field.integers, fallback);
}

void OptionReader::on_numbers(
    const OptionField& field,
    std::vector<double>& value) {
  const char* const key = field.key.name;
  value = reader().get_doubles(key, field.numbers, value);
  if (field.count == 2 && value.size() != 2) {
    reader().fail(key, "expected two numbers");
  }
}

void OptionReader::on_choice(
    const OptionField& field,
    const std::vector<std::string>& names,
    std::optional<size_t>& chosen,
    bool /*is_set*/) {
  std::vector<std::pair<std::string, size_t>> choices;
  for (const std::string& name : names) {
    choices.emplace_back(name, choices.size());
  }
  read(field, chosen, [&](const auto& fallback) {
    return reader().get_enum(field.key.name, choices, fallback);
  });
}

bool OptionReader::has_object(OptionKey key, bool has_value) {
  return reader().contains(key.name) || has_value;
}

void OptionReader::begin_object(const OptionField& field) {
  open_.push_back(reader().get_object(field.key.name));
}

void OptionReader::end_object() {
  open_.pop_back();
}

size_t OptionReader::begin_list(const OptionField& field, size_t /*size*/) {
  lists_.push_back(reader().get_objects(field.key.name));
  return lists_.back().size();
}

void OptionReader::begin_element(size_t index) {
  open_.push_back(lists_.back()[index]);
}

void OptionReader::end_list() {
  lists_.pop_back();
}

} // namespace tessera::runtime
