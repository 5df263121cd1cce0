// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/field_record.h"

#include "tessera/runtime/core/json_text.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

namespace tessera::zoo {

namespace {

/// The numbers in a text, as they are written there.
std::set<std::string> numbers_in(const std::string& text) {
  std::set<std::string> numbers;
  std::string number;
  for (const char c : text + " ") {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.') {
      number += c;
      continue;
    }
    while (number.ends_with('.')) {
      number.pop_back(); // the end of a sentence
    }
    numbers.insert(number);
    number.clear();
  }
  return numbers;
}

} // namespace

FieldRecord::Field* FieldRecord::find(const std::string& name) {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(), [&](const Field& field) {
        return field.name == name;
      });
  return found == fields_.end() ? nullptr : &*found;
}

void FieldRecord::add(const std::string& name, nlohmann::json value) {
  if (find(name) == nullptr) {
    fields_.push_back({name, std::move(value)});
  }
}

void FieldRecord::add_default(const std::string& name, nlohmann::json value) {
  Field* const known = find(name);
  if (known == nullptr) {
    fields_.push_back({name, std::move(value), /*is_given=*/false});
  } else if (!known->is_given && known->value.is_null()) {
    known->value = std::move(value); // read again, with a default
  }
}

template <typename Wants>
std::string FieldRecord::listed(const Wants& wants) const {
  std::string text;
  for (const Field& field : fields_) {
    if (!field.value.is_null() && wants(field)) {
      text += (text.empty() ? "" : ", ") + field.name + " " +
              runtime::show_json(field.value) +
              (field.is_given ? "" : " (default)");
    }
  }
  return text;
}

std::string FieldRecord::text() const {
  return listed([](const Field& field) {
    const bool is_size = field.value.is_number_integer();
    return (is_size && !field.name.ends_with("_token_id")) ||
           field.value.is_structured() || field.name == "id2label" ||
           (field.is_given && !field.value.is_number());
  });
}

std::string FieldRecord::text_about(const std::string& message) const {
  const std::set<std::string> numbers = numbers_in(message);
  const std::string text = listed([&](const Field& field) {
    return field.value.is_number() &&
           numbers.contains(runtime::show_json(field.value));
  });
  return text.empty() ? this->text() : text;
}

std::map<std::string, nlohmann::json> FieldRecord::defaults() const {
  std::map<std::string, nlohmann::json> values;
  for (const Field& field : fields_) {
    if (!field.is_given) {
      values.emplace(field.name, field.value);
    }
  }
  return values;
}

} // namespace tessera::zoo
