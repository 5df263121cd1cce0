// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the tests of token models share.

#include "tessera/runtime/core/json_text.h"
#include "tessera/text/tokenizer/token_model.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

inline std::unique_ptr<const TokenModel> token_model_of(
    const nlohmann::json& section,
    bool has_bytes = false) {
  return read_token_model(
      runtime::JsonValue(section, "tokenizer.json: 'model'"), has_bytes);
}

/// Each [id, begin, end].
inline std::vector<std::vector<uint32_t>> tokens_of(
    const TokenModel& model,
    std::string_view word,
    TokenModelCache& cache) {
  std::vector<WordToken> tokens;
  model.append(word, cache, tokens);
  std::vector<std::vector<uint32_t>> all;
  for (const WordToken& token : tokens) {
    all.push_back({token.id, token.bytes.begin, token.bytes.end});
  }
  return all;
}

inline std::vector<uint32_t> ids_of(
    const TokenModel& model,
    std::string_view word) {
  const auto cache = model.make_cache();
  std::vector<uint32_t> ids;
  for (const auto& token : tokens_of(model, word, *cache)) {
    ids.push_back(token[0]);
  }
  return ids;
}

} // namespace tessera::text
