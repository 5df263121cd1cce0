// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/field_record.h"

#include "tessera/runtime/core/json_text.h"

#include <algorithm>

namespace tessera::zoo {

void FieldRecord::add(const std::string& name, nlohmann::json value) {
  const auto found =
      std::find_if(fields_.begin(), fields_.end(), [&](const auto& field) {
        return field.first == name;
      });
  if (found == fields_.end()) {
    fields_.emplace_back(name, std::move(value));
  }
}

std::string FieldRecord::text() const {
  std::string text;
  for (const auto& [name, value] : fields_) {
    text += (text.empty() ? "" : ", ") + name + " " +
            (value.is_null() ? "not given" : runtime::show_json(value));
  }
  return text;
}

} // namespace tessera::zoo
