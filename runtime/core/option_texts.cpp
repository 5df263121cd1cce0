// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_texts.h"

#include "tessera/runtime/core/option_paths.h"
#include "tessera/runtime/core/option_values.h"

namespace tessera::runtime {

namespace {

class OptionTextList final : public OptionPaths {
 public:
  OptionTextList() : OptionPaths("") {}

  const OptionTexts& texts() const {
    return texts_;
  }

 private:
  void on_value(const OptionField& field, nlohmann::json& value) override {
    if (!value.is_null()) {
      texts_[path_of(field.key.name)] =
          value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
  }
  size_t begin_list(const OptionField& field, size_t size) override {
    texts_[path_of(field.key.name)] = std::to_string(size) + " elements";
    return OptionPaths::begin_list(field, size);
  }

  OptionTexts texts_;
};

} // namespace

OptionTexts texts_of_list(const OptionList& list) {
  OptionTextList texts;
  list(texts);
  return texts.texts();
}

} // namespace tessera::runtime
