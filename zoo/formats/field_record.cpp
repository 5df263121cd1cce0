// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/field_record.h"

#include "tessera/runtime/core/json_text.h"

#include <algorithm>
#include <utility>

namespace tessera::zoo {

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

bool FieldRecord::has(const std::string& name) const {
  return std::any_of(fields_.begin(), fields_.end(), [&](const Field& field) {
    return field.name == name;
  });
}

std::string FieldRecord::text() const {
  std::string text;
  for (const Field& field : fields_) {
    const nlohmann::json& value = field.value;
    const bool is_size = value.is_number_integer() || value.is_structured() ||
                         field.name == "id2label";
    const bool is_choice =
        value.is_boolean() || value.is_null() || field.name.ends_with("_ratio");
    if ((is_size || (is_choice && field.is_given)) &&
        !field.name.ends_with("_token_id")) {
      text += (text.empty() ? "" : ", ") + field.name + " " +
              runtime::show_json(value) + (field.is_given ? "" : " (default)");
    }
  }
  return text;
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
