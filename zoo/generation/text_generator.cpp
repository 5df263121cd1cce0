// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/text_generator.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/generation/blanks.h"
#include "tessera/zoo/generation/prompt_batch.h"
#include "tessera/zoo/generation/stop_filter.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace tessera::zoo {

namespace {

/// More tokens than bytes of a stop string decide whether a text contains it.
constexpr size_t kTokensAround = 8;
constexpr size_t kShownBytes = 40;

std::string shown(std::string_view text) {
  size_t bytes = std::min(text.size(), kShownBytes);
  while (bytes > 0 && bytes < text.size() &&
         (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) {
    --bytes; // of a character
  }
  return std::string(text.substr(0, bytes)) +
         (bytes < text.size() ? "..." : "");
}

size_t longest_in(const std::vector<std::string>& texts) {
  size_t longest = 0;
  for (const std::string& text : texts) {
    longest = std::max(longest, text.size());
  }
  return longest;
}

} // namespace

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return "end";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
  }
  return "";
}

/// Decodes the tokens of one sequence as they come.
class TextGenerator::Row {
 public:
  Row(const text::Tokenizer& tokenizer,
      bool skips_special,
      const std::vector<int64_t>& before,
      const GenerateOptions& options)
      : options_(options),
        stream_(tokenizer, skips_special, before),
        filter_(options.stop_strings) {}

  /// @return what is sure of the text; empty after the end.
  std::string add(int64_t token) {
    result_.tokens.push_back(token);
    const auto& ends = options_.eos_token_id;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      result_.reason = FinishReason::kEnd;
      is_done_ = true;
      return finish();
    }
    std::string sure = filter_.add(stream_.add(token));
    result_.text += sure;
    if (filter_.is_stopped()) {
      result_.reason = FinishReason::kStop;
      is_done_ = true;
    }
    return sure;
  }

  /// @return what was held back, if no more tokens come.
  std::string finish() {
    std::string rest = filter_.add(stream_.finish());
    if (filter_.is_stopped() && result_.reason == FinishReason::kLength) {
      result_.reason = FinishReason::kStop;
    }
    rest += filter_.finish();
    result_.text += rest;
    return rest;
  }

  bool is_done() const {
    return is_done_;
  }
  bool is_stopped() const {
    return filter_.is_stopped();
  }
  GeneratedText take() {
    return std::move(result_);
  }

 private:
  const GenerateOptions& options_;
  text::DecodeStream stream_;
  StopFilter filter_;
  GeneratedText result_;
  bool is_done_ = false;
};

TextGenerator::TextGenerator(
    Model& model,
    text::Tokenizer tokenizer,
    TextOptions options,
    at::Device device,
    ParallelRun* parallel)
    : model_(model),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      device_(device),
      parallel_(parallel) {
  GenerateOptions& tokens = options_.tokens;
  if (tokens.eos_token_id.empty()) {
    if (const auto end = tokenizer_.special_id("eos_token")) {
      tokens.eos_token_id = {*end};
    }
  }
  if (tokens.pad_token_id < 0 || tokens.pad_token_id >= tokenizer_.size()) {
    tokens.pad_token_id =
        tokens.eos_token_id.empty() ? 0 : tokens.eos_token_id.front();
  }
}

std::vector<int64_t> TextGenerator::prompt_tokens(
    const std::string& text) const {
  text::EncodeOptions options;
  options.add_special_tokens = options_.add_special_tokens;
  std::vector<int64_t> ids = tokenizer_.encode(text, options).ids();
  if (ids.empty()) {
    if (const auto begin = tokenizer_.special_id("bos_token")) {
      ids.push_back(*begin);
    }
  }
  return ids;
}

void TextGenerator::check_length(
    const std::vector<int64_t>& prompt,
    const std::string& name) const {
  if (model_.first_token()) {
    return;
  }
  const GenerateOptions& options = options_.tokens;
  const auto length = static_cast<int64_t>(prompt.size());
  TESSERA_CHECK(
      !options.max_length || length < *options.max_length,
      "{} has {} tokens, and max_length is {}, of the prompt and the new tokens together: shorten the prompt, or set max_new_tokens instead",
      name,
      length,
      options.max_length.value_or(0));
  const auto most = model_.position_limit();
  if (!most) {
    return;
  }
  const int64_t wanted =
      options.fit_to_model ? 1 : options.after(length).max_new_tokens;
  TESSERA_CHECK(
      length + wanted - 1 <= *most,
      "{} has {} tokens, and max_new_tokens is {}; the model has {} positions: shorten the prompt{}",
      name,
      length,
      wanted,
      *most,
      length < *most
          ? formatted(", or set max_new_tokens to {}", *most + 1 - length)
          : "");
}

std::vector<GeneratedText> TextGenerator::generate(
    const std::vector<std::string>& prompts,
    const OnText& on_text,
    PromptCache* kept,
    int64_t first_number) const {
  if (prompts.empty()) {
    return {};
  }
  if (model_.fills_blanks()) {
    return fill(prompts, on_text, first_number);
  }
  std::vector<std::vector<int64_t>> ids;
  for (const std::string& prompt : prompts) {
    ids.push_back(prompt_tokens(prompt));
    TESSERA_CHECK(
        !ids.back().empty(),
        "prompt {} is '{}', which has no tokens, and the tokenizer has no bos_token to begin with; write the beginning of a text",
        ids.size(),
        shown(prompt));
    check_length(
        ids.back(), formatted("prompt {} ('{}')", ids.size(), shown(prompt)));
  }
  GenerateOptions options = options_.tokens;
  options.prompt_numbers.resize(prompts.size());
  std::iota(
      options.prompt_numbers.begin(),
      options.prompt_numbers.end(),
      first_number);
  const ModelInput batch = prompt_batch(ids, options.pad_token_id, device_);
  // The answer of an encoder-decoder, or to a chat, is a text of its own.
  if (model_.first_token() || !options_.add_special_tokens) {
    ids.assign(ids.size(), {});
  }
  return write(batch, ids, options, on_text, kept);
}

std::vector<GeneratedText> TextGenerator::write(
    const ModelInput& batch,
    const std::vector<std::vector<int64_t>>& before,
    const GenerateOptions& options,
    const OnText& on_text,
    PromptCache* kept) const {
  const auto copies = static_cast<size_t>(options.num_return_sequences);
  const auto pass_on = [&](size_t row, const std::string& fragment) {
    if (on_text && !fragment.empty()) {
      on_text(row, fragment);
    }
  };
  std::vector<Row> rows;
  for (const auto& tokens : before) {
    for (size_t copy = 0; copy < copies; ++copy) {
      rows.emplace_back(
          tokenizer_, options_.skip_special_tokens, tokens, options);
    }
  }
  EndsSequence ends;
  if (options.num_beams == 1) {
    ends = [&](int64_t row, std::span<const int64_t> written) {
      Row& current = rows[static_cast<size_t>(row)];
      pass_on(static_cast<size_t>(row), current.add(written.back()));
      return current.is_done();
    };
  } else if (!options.stop_strings.empty()) {
    const size_t around = longest_in(options.stop_strings) + kTokensAround;
    ends = [this, &options, &before, around](
               int64_t row, std::span<const int64_t> written) {
      const auto text = static_cast<size_t>(row / options.num_beams);
      const bool is_complete = written.size() <= around;
      const auto earlier =
          written.first(is_complete ? 0 : written.size() - around);
      Row replayed(
          tokenizer_,
          options_.skip_special_tokens,
          is_complete ? before[text]
                      : std::vector<int64_t>(earlier.begin(), earlier.end()),
          options);
      for (const int64_t token : written.subspan(earlier.size())) {
        replayed.add(token);
      }
      return replayed.is_stopped();
    };
  }
  const at::Tensor sequences =
      zoo::generate(model_, batch, options, parallel_, ends, kept);
  std::vector<GeneratedText> texts;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (options.num_beams > 1) {
      std::string full;
      for (const int64_t token : new_tokens_of(
               model_, options, batch, sequences, static_cast<int64_t>(i))) {
        full += rows[i].is_done() ? "" : rows[i].add(token);
      }
      full += rows[i].is_done() ? "" : rows[i].finish();
      pass_on(i, full);
    } else if (!rows[i].is_done()) {
      pass_on(i, rows[i].finish());
    }
    texts.push_back(rows[i].take());
  }
  return texts;
}

std::vector<GeneratedText> TextGenerator::fill(
    const std::vector<std::string>& prompts,
    const OnText& on_text,
    int64_t first_number) const {
  const BlankTokens tokens = BlankTokens::of(tokenizer_);
  const auto copies = static_cast<size_t>(options_.tokens.num_return_sequences);
  GenerateOptions options = options_.tokens;
  options.eos_token_id = {tokens.end};
  if (tokens.text_end >= 0) {
    options.eos_token_id.push_back(tokens.text_end);
  }
  options.pad_token_id = tokens.end;
  const auto most = model_.position_limit();
  if (most && options.fit_to_model) {
    options.max_new_tokens = std::min(options.max_new_tokens, *most - 1);
  }
  struct Filling {
    BlankedText text;
    std::vector<std::string> filled;
    GeneratedText result;
  };
  std::vector<Filling> rows;
  for (size_t i = 0; i < prompts.size(); ++i) {
    try {
      rows.push_back({blanked_text(tokenizer_, tokens, prompts[i]), {}, {}});
    } catch (const Error& error) {
      TESSERA_FAIL(
          "prompt {} is '{}': {}", i + 1, shown(prompts[i]), error.what());
    }
    const auto length = static_cast<int64_t>(rows.back().text.context.size());
    TESSERA_CHECK(
        !most || length <= *most,
        "prompt {} has {} tokens; the model has {} positions: shorten the prompt",
        i + 1,
        length,
        *most);
    rows.back().result.reason = FinishReason::kEnd;
  }
  for (bool is_first = true;; is_first = false) {
    std::vector<BlankedText> open;
    std::vector<size_t> indices;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].text.is_full()) {
        open.push_back(rows[i].text);
        indices.push_back(i);
      }
    }
    if (open.empty()) {
      break;
    }
    // After the first blank, each copy is a row of its own.
    const size_t texts_each = is_first ? 1 : copies;
    options.prompt_numbers.clear();
    for (const size_t index : indices) {
      options.prompt_numbers.push_back(
          first_number * static_cast<int64_t>(texts_each) +
          static_cast<int64_t>(index));
    }
    const auto written = write(
        blank_inputs(open, tokens.start, device_),
        std::vector<std::vector<int64_t>>(open.size()),
        options,
        {},
        nullptr);
    if (is_first && copies > 1) { // from here on each copy goes its own way
      std::vector<Filling> all;
      for (const Filling& row : rows) {
        all.insert(all.end(), copies, row);
      }
      rows = std::move(all);
      indices.clear();
      for (size_t i = 0; i < rows.size(); ++i) {
        indices.push_back(i);
      }
    }
    for (size_t i = 0; i < indices.size(); ++i) {
      Filling& row = rows[indices[i]];
      GeneratedText one = written[i];
      row.result.tokens.insert(
          row.result.tokens.end(), one.tokens.begin(), one.tokens.end());
      if (one.reason == FinishReason::kEnd) {
        one.tokens.pop_back();
      }
      row.text.filled.push_back(std::move(one.tokens));
      row.filled.push_back(std::move(one.text));
      if (row.result.reason != FinishReason::kLength) {
        row.result.reason = one.reason;
      }
    }
    options.num_return_sequences = 1;
    ++options.seed;
  }
  std::vector<GeneratedText> texts;
  for (size_t i = 0; i < rows.size(); ++i) {
    Filling& row = rows[i];
    row.result.text = with_blanks_filled(prompts[i / copies], row.filled);
    if (on_text) {
      on_text(i, row.result.text);
    }
    texts.push_back(std::move(row.result));
  }
  return texts;
}

} // namespace tessera::zoo
