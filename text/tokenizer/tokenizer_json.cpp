// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json, the file of the `tokenizers` library.
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"

#include <limits>
#include <optional>

namespace tessera::text {

namespace {

using runtime::JsonValue;

constexpr const char* kRemedy =
    "; fetch the tokenizer's files again, or save them with the `tokenizers` package";

/// A token that the vocabulary has too has the id that it has there.
void add_token(
    AddedToken token,
    const JsonValue& item,
    TokenizerReader::Parts& parts) {
  if (const auto known = parts.model->find(token.content);
      known && *known != token.id) {
    log_warning(
        "{}: the added token '{}' has id {}, but {} in the vocabulary, which counts",
        parts.origin,
        token.content,
        token.id,
        *known);
    token.id = *known;
  }
  const auto [other, is_new] = parts.added.emplace(token.id, token);
  if (!is_new && other->second.content != token.content) {
    item.at("id").fail(
        "another id than that of '" + other->second.content + "'");
  }
}

} // namespace

AddedToken read_added_token(const JsonValue& item) {
  AddedToken token{
      .content = item.at("content").as<std::string>(),
      .id = item.at("id").integer(
          {.min = 0, .max = std::numeric_limits<int32_t>::max()}),
      .is_special = item.value_or("special", false),
      .is_single_word = item.value_or("single_word", false),
      .strips_left = item.value_or("lstrip", false),
      .strips_right = item.value_or("rstrip", false),
      .is_normalized = item.value_or("normalized", false)};
  if (token.content.empty()) {
    item.at("content").fail("a text that is not empty");
  }
  return token;
}

void read_tokenizer_json(
    const nlohmann::json& document,
    const std::string& origin,
    TokenizerReader::Parts& parts) {
  parts.origin = origin;
  const JsonValue file(document, origin, kRemedy);
  if (const auto section = file.find_set("normalizer")) {
    parts.normalizer = read_normalizer(*section);
  }
  if (const auto section = file.find_set("pre_tokenizer")) {
    parts.pre_tokenizer = read_pre_tokenizer(*section);
  }
  parts.model = read_token_model(
      file.at("model"),
      parts.pre_tokenizer != nullptr && parts.pre_tokenizer->makes_bytes());
  const JsonValue model = file.at("model");
  const auto type = model.find_set("type");
  parts.has_bpe_model = type ? type->as<std::string>() == "BPE"
                             : model.find_set("merges").has_value();
  if (const auto section = file.find_set("added_tokens")) {
    for (const JsonValue& item : section->elements()) {
      add_token(read_added_token(item), item, parts);
    }
  }
  if (const auto section = file.find_set("post_processor")) {
    parts.post_processor = read_post_processor(
        *section, [&parts](int64_t id) -> const std::string& {
          const auto added = parts.added.find(id);
          return added != parts.added.end()
                     ? added->second.content
                     : parts.model->token(static_cast<uint32_t>(id));
        });
  }
  if (const auto section = file.find_set("decoder")) {
    parts.decoder = read_decoder(*section);
  }
}

} // namespace tessera::text
