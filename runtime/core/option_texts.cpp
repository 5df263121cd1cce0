// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_texts.h"

#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/option_values.h"

#include <vector>

namespace tessera::runtime {

namespace {

class OptionTextList final : public OptionFields {
 public:
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
    texts_[open_.back()] = std::to_string(size) + " elements";
    return size;
  }
  void begin_element(size_t index) override {
    open_.push_back(open_.back() + "[" + std::to_string(index) + "]");
  }
  void end_list() override {
    end_object();
  }

  std::string path_of(const std::string& key) const {
    return open_.empty() ? key : open_.back() + "." + key;
  }

  OptionTexts texts_;
  std::vector<std::string> open_; ///< paths of objects that have not ended
};

} // namespace

OptionTexts texts_of_list(const OptionList& list) {
  OptionTextList texts;
  list(texts);
  return texts.texts();
}

} // namespace tessera::runtime
