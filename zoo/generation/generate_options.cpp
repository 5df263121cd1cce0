// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/generate_options.h"

#include "tessera/zoo/json_fields.h"

#include <string>

namespace tessera::zoo {

namespace {

constexpr int64_t kMostTokens = INT32_MAX;

/// A token or a list of them.
std::vector<int64_t> end_tokens(const nlohmann::json& value) {
  if (value.is_number_integer()) {
    return {value.get<int64_t>()};
  }
  std::vector<int64_t> tokens;
  if (!value.is_array()) {
    return tokens;
  }
  for (const nlohmann::json& one : value) {
    if (!one.is_number_integer()) {
      return {};
    }
    tokens.push_back(one.get<int64_t>());
  }
  return tokens;
}

void read_tokens(const JsonFields& fields, GenerateOptions& options) {
  const nlohmann::json ends =
      fields.object().value("eos_token_id", nlohmann::json());
  if (!ends.is_null()) {
    options.eos_token_id = end_tokens(ends);
    TESSERA_CHECK(
        !options.eos_token_id.empty(),
        "{}: 'eos_token_id' is {}, but must be a token or a list of tokens",
        fields.origin(),
        runtime::show_json(ends));
    options.pad_token_id = options.eos_token_id.front();
  }
  options.pad_token_id = fields.get_or("pad_token_id", options.pad_token_id);
}

/// A text or a list of them.
std::vector<std::string> stop_strings_in(const JsonFields& fields) {
  const nlohmann::json value =
      fields.object().value("stop_strings", nlohmann::json());
  std::vector<std::string> texts;
  for (const nlohmann::json& one :
       value.is_array() ? value : nlohmann::json::array({value})) {
    if (value.is_null()) {
      break;
    }
    TESSERA_CHECK(
        one.is_string(),
        "{}: 'stop_strings' is {}, but must be a string or a list of strings",
        fields.origin(),
        runtime::show_json(value));
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

/// A boolean or "never".
EarlyStopping early_stopping_in(const JsonFields& fields) {
  const nlohmann::json value =
      fields.object().value("early_stopping", nlohmann::json(false));
  if (value == "never") {
    return EarlyStopping::kNever;
  }
  TESSERA_CHECK(
      value.is_boolean() || value.is_null(),
      "{}: 'early_stopping' is {}, but must be true, false or \"never\"",
      fields.origin(),
      runtime::show_json(value));
  return value == true ? EarlyStopping::kYes : EarlyStopping::kNo;
}

} // namespace

void GenerateOptions::check() const {
  check_values("");
  TESSERA_CHECK(
      min_new_tokens <= max_new_tokens,
      "min_new_tokens is {}; it must be at most max_new_tokens, {}",
      min_new_tokens,
      max_new_tokens);
  TESSERA_CHECK(
      (do_sample && num_beams == 1) || num_return_sequences <= num_beams,
      "num_return_sequences is {}; without do_sample, and with beams, it must not be greater than num_beams, {}",
      num_return_sequences,
      num_beams);
}

void GenerateOptions::check_values(const std::string& place) const {
  const auto check_range =
      [&](const char* name, auto value, bool is_good, const char* range) {
        TESSERA_CHECK(
            is_good, "{}{} is {}; it must be {}", place, name, value, range);
      };
  check_range(
      "max_new_tokens",
      max_new_tokens,
      max_new_tokens >= 1 && max_new_tokens <= kMostTokens,
      "between 1 and 2^31 - 1");
  check_range(
      "min_new_tokens", min_new_tokens, min_new_tokens >= 0, "0 or more");
  check_range(
      "repetition_penalty",
      repetition_penalty,
      repetition_penalty > 0,
      "more than 0");
  check_range(
      "no_repeat_ngram_size",
      no_repeat_ngram_size,
      no_repeat_ngram_size >= 0,
      "0 or more");
  check_range("temperature", temperature, temperature > 0, "more than 0");
  check_range("top_k", top_k, top_k >= 0, "0 or more");
  check_range(
      "top_p", top_p, top_p > 0 && top_p <= 1, "more than 0 and at most 1");
  check_range("min_p", min_p, min_p >= 0 && min_p <= 1, "between 0 and 1");
  check_range("num_beams", num_beams, num_beams >= 1, "1 or more");
  for (const std::string& stop : stop_strings) {
    check_range("a stop string", "empty", !stop.empty(), "a text");
  }
  check_range(
      "num_return_sequences",
      num_return_sequences,
      num_return_sequences >= 1,
      "1 or more");
}

GenerateOptions generate_options(
    const std::filesystem::path& folder,
    const GenerateOptions& defaults) {
  GenerateOptions options = defaults;
  read_tokens(JsonFields::from_file(folder / "config.json"), options);
  const auto fields = JsonFields::from_file(folder / "generation_config.json");
  read_tokens(fields, options);
  const auto read = [&](const char* key, auto& value) {
    value = fields.get_or(key, value);
  };
  read("max_new_tokens", options.max_new_tokens);
  read("min_new_tokens", options.min_new_tokens);
  read("repetition_penalty", options.repetition_penalty);
  read("no_repeat_ngram_size", options.no_repeat_ngram_size);
  read("do_sample", options.do_sample);
  read("temperature", options.temperature);
  read("top_k", options.top_k);
  read("top_p", options.top_p);
  read("min_p", options.min_p);
  read("num_beams", options.num_beams);
  read("length_penalty", options.length_penalty);
  options.early_stopping = early_stopping_in(fields);
  options.stop_strings = stop_strings_in(fields);
  read("num_return_sequences", options.num_return_sequences);
  options.check_values(fields.origin() + ": ");
  return options;
}

} // namespace tessera::zoo
