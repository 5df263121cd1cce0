// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/generate_options.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/json_file.h"
#include "tessera/runtime/io/known_keys.h"

#include <algorithm>
#include <map>
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

void read_tokens(const runtime::JsonValue& fields, GenerateOptions& options) {
  const nlohmann::json ends =
      fields.value().value("eos_token_id", nlohmann::json());
  if (!ends.is_null()) {
    options.eos_token_id = end_tokens(ends);
    TESSERA_CHECK(
        !options.eos_token_id.empty(),
        "{}: 'eos_token_id' is {}, but must be a token or a list of tokens",
        fields.place(),
        runtime::show_json(ends));
    options.pad_token_id = options.eos_token_id.front();
  }
  options.pad_token_id = fields.get_or("pad_token_id", options.pad_token_id);
}

[[noreturn]] void refuse_value(
    const runtime::JsonValue& fields,
    const char* key,
    const char* expected) {
  TESSERA_FAIL(
      "{}: '{}' is {}, but must be {}",
      fields.place(),
      key,
      runtime::show_json(fields.value().value(key, nlohmann::json())),
      expected);
}

/// A token or a list of them; empty if there is none.
std::vector<int64_t> tokens_in(
    const runtime::JsonValue& fields,
    const char* key) {
  const nlohmann::json value = fields.value().value(key, nlohmann::json());
  auto tokens = end_tokens(value);
  if (tokens.empty() && !value.is_null() && value != nlohmann::json::array()) {
    refuse_value(fields, key, "a token or a list of tokens");
  }
  return tokens;
}

/// A list of sequences of tokens.
std::vector<std::vector<int64_t>> bad_words_in(
    const runtime::JsonValue& fields) {
  constexpr const char* kKey = "bad_words_ids";
  const nlohmann::json value = fields.value().value(kKey, nlohmann::json());
  std::vector<std::vector<int64_t>> words;
  for (const nlohmann::json& word : value) {
    words.push_back(
        word.is_array() ? end_tokens(word) : std::vector<int64_t>());
    if (words.back().empty()) {
      refuse_value(fields, kKey, "a list of lists of tokens");
    }
  }
  return words;
}

/// [[[tokens], bias], ...]; of a sequence that is given twice the last one
/// counts.
std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias_in(
    const runtime::JsonValue& fields) {
  constexpr const char* kKey = "sequence_bias";
  const nlohmann::json value = fields.value().value(kKey, nlohmann::json());
  std::map<std::vector<int64_t>, double> biases;
  for (const nlohmann::json& one : value) {
    const bool is_pair = one.is_array() && one.size() == 2 &&
                         one[0].is_array() && one[1].is_number();
    const auto tokens = is_pair ? end_tokens(one[0]) : std::vector<int64_t>();
    if (tokens.empty()) {
      refuse_value(
          fields, kKey, "a list of pairs of a list of tokens and a number");
    }
    biases[tokens] = one[1].get<double>();
  }
  return {biases.begin(), biases.end()};
}

/// transformers' GenerationConfig.
const runtime::KnownKeys& generation_keys() {
  static const runtime::KnownKeys keys{
      .read =
          {"eos_token_id",
           "pad_token_id",
           "max_new_tokens",
           "min_new_tokens",
           "max_length",
           "min_length",
           "repetition_penalty",
           "no_repeat_ngram_size",
           "sequence_bias",
           "bad_words_ids",
           "suppress_tokens",
           "begin_suppress_tokens",
           "decoder_start_token_id",
           "forced_bos_token_id",
           "forced_eos_token_id",
           "do_sample",
           "temperature",
           "top_k",
           "top_p",
           "min_p",
           "num_beams",
           "length_penalty",
           "early_stopping",
           "stop_strings",
           "num_return_sequences"},
      // How and how fast texts are made, and what is returned beside them.
      .without_effect =
          {"bos_token_id",
           "transformers_version",
           "use_cache",
           "cache_implementation",
           "cache_config",
           "max_cache_len",
           "return_legacy_cache",
           "return_dict_in_generate",
           "output_attentions",
           "output_hidden_states",
           "output_scores",
           "output_logits",
           "is_assistant",
           "num_assistant_tokens",
           "num_assistant_tokens_schedule",
           "assistant_confidence_threshold",
           "prompt_lookup_num_tokens",
           "max_matching_ngram_size",
           "assistant_early_exit",
           "assistant_lookbehind",
           "target_lookbehind",
           "assistant_ensemble_weight",
           "speculation_type",
           "use_mtp",
           "compile_config",
           "disable_compile",
           "continuous_batching_config",
           "low_memory",
           "prefill_chunk_size",
           "remove_invalid_values",
           "chat_format",
           "max_window_size"},
      .neutral = {
          {"encoder_repetition_penalty", {1.0}},
          {"encoder_no_repeat_ngram_size", {0}},
          {"diversity_penalty", {0.0}},
          {"num_beam_groups", {1}},
          {"penalty_alpha", {0.0}},
          {"typical_p", {1.0}},
          {"top_h", {1.0}},
          {"epsilon_cutoff", {0.0}},
          {"eta_cutoff", {0.0}},
          {"guidance_scale", {1.0}},
          {"renormalize_logits", {false}},
          {"token_healing", {false}},
          {"exponential_decay_length_penalty", {}},
          {"force_words_ids", {}},
          {"constraints", {}},
          {"dola_layers", {}},
          {"watermarking_config", {}},
          {"max_time", {}}}};
  return keys;
}

/// A text or a list of them.
std::vector<std::string> stop_strings_in(const runtime::JsonValue& fields) {
  const nlohmann::json value =
      fields.value().value("stop_strings", nlohmann::json());
  std::vector<std::string> texts;
  for (const nlohmann::json& one :
       value.is_array() ? value : nlohmann::json::array({value})) {
    if (value.is_null()) {
      break;
    }
    TESSERA_CHECK(
        one.is_string(),
        "{}: 'stop_strings' is {}, but must be a string or a list of strings",
        fields.place(),
        runtime::show_json(value));
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

/// A boolean or "never".
EarlyStopping early_stopping_in(const runtime::JsonValue& fields) {
  const nlohmann::json value =
      fields.value().value("early_stopping", nlohmann::json(false));
  if (value == "never") {
    return EarlyStopping::kNever;
  }
  TESSERA_CHECK(
      value.is_boolean() || value.is_null(),
      "{}: 'early_stopping' is {}, but must be true, false or \"never\"",
      fields.place(),
      runtime::show_json(value));
  return value == true ? EarlyStopping::kYes : EarlyStopping::kNo;
}

} // namespace

void GenerateOptions::check() const {
  check_values("");
  TESSERA_CHECK(
      max_length || min_new_tokens <= max_new_tokens,
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
  if (do_sample) {
    check_range("temperature", temperature, temperature > 0, "more than 0");
    check_range("top_k", top_k, top_k >= 0, "0 or more");
    check_range(
        "top_p", top_p, top_p > 0 && top_p <= 1, "more than 0 and at most 1");
    check_range("min_p", min_p, min_p >= 0 && min_p <= 1, "between 0 and 1");
  }
  check_range(
      "max_length",
      max_length.value_or(1),
      max_length.value_or(1) >= 1 && max_length.value_or(1) <= kMostTokens,
      "between 1 and 2^31 - 1");
  check_range(
      "decoder_start_token_id",
      decoder_start_token_id.value_or(0),
      decoder_start_token_id.value_or(0) >= 0,
      "a token");
  check_range("min_length", min_length, min_length >= 0, "0 or more");
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

int64_t GenerateOptions::number_of_prompt(int64_t index) const {
  return prompt_numbers.empty() ? index
                                : prompt_numbers.at(static_cast<size_t>(index));
}

GenerateOptions GenerateOptions::after(int64_t prompt_length) const {
  GenerateOptions options = *this;
  if (max_length) {
    TESSERA_CHECK(
        prompt_length < *max_length,
        "max_length is {}, of the prompt and the new tokens together, but the prompt has {} tokens; shorten it, or set max_new_tokens instead",
        *max_length,
        prompt_length);
    options.max_new_tokens = *max_length - prompt_length;
  }
  options.min_new_tokens = std::min(
      std::max(min_new_tokens, min_length - prompt_length),
      options.max_new_tokens);
  options.max_length.reset();
  options.min_length = 0;
  return options;
}

GenerateOptions generate_options(
    const std::filesystem::path& folder,
    const GenerateOptions& defaults) {
  GenerateOptions options = defaults;
  read_tokens(runtime::read_json_object(folder / "config.json"), options);
  const auto fields =
      runtime::read_json_object(folder / "generation_config.json");
  read_tokens(fields, options);
  const auto read = [&](const char* key, auto& value) {
    value = fields.get_or(key, value);
  };
  // As by transformers, the number of new tokens comes before the length.
  if (!fields.get<int64_t>("max_new_tokens")) {
    options.max_length = fields.get<int64_t>("max_length");
  }
  if (!fields.get<int64_t>("min_new_tokens")) {
    read("min_length", options.min_length);
  }
  read("max_new_tokens", options.max_new_tokens);
  read("min_new_tokens", options.min_new_tokens);
  options.sequence_bias = sequence_bias_in(fields);
  options.bad_words_ids = bad_words_in(fields);
  options.suppress_tokens = tokens_in(fields, "suppress_tokens");
  options.begin_suppress_tokens = tokens_in(fields, "begin_suppress_tokens");
  options.decoder_start_token_id =
      fields.get<int64_t>("decoder_start_token_id");
  options.forced_bos_token_id = fields.get<int64_t>("forced_bos_token_id");
  options.forced_eos_token_id = tokens_in(fields, "forced_eos_token_id");
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
  options.check_values(fields.place() + ": ");
  runtime::log_ignored_keys(fields, generation_keys());
  return options;
}

} // namespace tessera::zoo
