// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/supervised_texts.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/zoo/data/file_patterns.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace tessera::zoo {

namespace {

/// The ranges of tokens that `is_learned` holds for; not the first token.
template <typename Predicate>
std::vector<TokenRange> learned_ranges(
    const TokenSequence& tokens,
    const Predicate& is_learned) {
  std::vector<TokenRange> ranges;
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (!is_learned(tokens[i])) {
      continue;
    }
    const auto place = static_cast<int64_t>(i);
    if (ranges.empty() || ranges.back().end < place) {
      ranges.push_back({place, place});
    }
    ranges.back().end = place + 1;
  }
  return ranges;
}

void shorten(SupervisedText& text, int64_t max_length) {
  if (static_cast<int64_t>(text.tokens.size()) <= max_length) {
    return;
  }
  text.is_truncated = true;
  text.tokens.resize(static_cast<size_t>(max_length));
  std::erase_if(text.answers, [max_length](const TokenRange& range) {
    return range.begin >= max_length;
  });
  if (!text.answers.empty()) {
    text.answers.back().end = std::min(text.answers.back().end, max_length);
  }
}

} // namespace

int64_t SupervisedText::learned() const {
  auto count = static_cast<int64_t>(target.size());
  for (const TokenRange& range : answers) {
    count += range.end - range.begin;
  }
  return count;
}

std::vector<int64_t> SupervisedText::prompt() const {
  return answers.empty()
             ? tokens
             : std::vector<int64_t>(
                   tokens.begin(), tokens.begin() + answers.back().begin);
}

SupervisedEncoder::SupervisedEncoder(
    Tokenizer tokenizer,
    SupervisedOptions options,
    PromptKind kind,
    std::filesystem::path folder,
    int64_t vocab,
    int64_t max_length)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      kind_(kind),
      folder_(std::move(folder)),
      vocab_(vocab),
      max_length_(max_length) {
  const auto end = tokenizer_.special_id("eos_token");
  TESSERA_CHECK(
      end.has_value(),
      "the tokenizer in '{}' has no eos_token, which ends what is learned; name one in its tokenizer_config.json",
      folder_.string());
  end_token_ = *end;
  if (!options_.prompt_template.empty()) {
    template_.emplace(options_.prompt_template, kCompletionPlace);
  }
  if (!tokenizer_.settings().chat_template.empty()) {
    chat_.emplace(tokenizer_.settings(), folder_.string());
  }
}

const std::string& SupervisedEncoder::text_of(
    const TextRow& row,
    const std::string& key) const {
  const auto found = row.values.find(key);
  TESSERA_CHECK(
      found != row.values.end(),
      "{}: there is neither '{}', a conversation, nor '{}', a text; name the keys of the rows in data.messages_key, or in data.prompt_key (or data.template) and data.completion_key",
      row.place(),
      options_.messages,
      key);
  TESSERA_CHECK(
      found->is_string(),
      "{}: '{}' is {}; it must be a text",
      row.place(),
      key,
      runtime::show_json(*found));
  return found->get_ref<const std::string&>();
}

SupervisedText SupervisedEncoder::conversation(const TextRow& row) const {
  TESSERA_CHECK(
      kind_ == PromptKind::kDecoder,
      "{}: '{}' is a conversation, which an encoder-decoder is not trained on; give rows with '{}' and '{}'",
      row.place(),
      options_.messages,
      options_.prompt,
      options_.completion);
  TESSERA_CHECK(
      !row.is_of_table,
      "{}: '{}' is a conversation, which a table cannot hold; write JSON lines",
      row.place(),
      options_.messages);
  // Templates show the keys in their order.
  const auto values = nlohmann::ordered_json::parse(row.text);
  const auto tools = values.find("tools");
  const RenderedChat chat = chat_->render_with_answers(
      values.at(options_.messages),
      row.place(),
      tools == values.end() ? nlohmann::ordered_json() : *tools);
  EncodeOptions how;
  how.add_special_tokens = false;
  how.with_offsets = true;
  const Encoding encoding = tokenizer_.encode(chat.text, how);
  SupervisedText text;
  text.tokens = encoding.ids();
  // Both are in order.
  auto answer = chat.answers.begin();
  text.answers = learned_ranges(encoding.tokens, [&](const PlacedToken& token) {
    while (answer != chat.answers.end() && answer->end <= token.bytes.begin) {
      ++answer;
    }
    return answer != chat.answers.end() && token.bytes.end > answer->begin &&
           token.bytes.size() > 0;
  });
  TESSERA_CHECK(
      !text.answers.empty(),
      "{}: '{}' has no answer of the role assistant to learn",
      row.place(),
      options_.messages);
  return text;
}

SupervisedText SupervisedEncoder::continued(
    const std::string& prompt,
    const std::string& completion) const {
  EncodeOptions how;
  how.with_offsets = true;
  const std::string separator = template_ ? template_->separator() : "";
  Encoding encoding = tokenizer_.encode(prompt + separator + completion, how);
  TokenSequence& tokens = encoding.tokens;
  while (!tokens.empty() && tokens.back().text < 0) {
    tokens.pop_back(); // an end of the text
  }
  if (tokens.empty() || tokens.back().id != end_token_) {
    PlacedToken end;
    end.id = end_token_;
    tokens.push_back(end);
  }
  SupervisedText text;
  text.tokens = encoding.ids();
  text.answers = learned_ranges(tokens, [&](const PlacedToken& token) {
    return &token == &tokens.back() ||
           (token.text >= 0 && token.bytes.end > prompt.size());
  });
  text.reference = completion;
  return text;
}

SupervisedText SupervisedEncoder::translated(
    const std::string& prompt,
    const std::string& completion) const {
  EncodeOptions how;
  how.truncation = {.max_length = max_length_};
  const Encoding input = tokenizer_.encode(prompt, how);
  Encoding target = tokenizer_.encode(completion, how);
  SupervisedText text;
  text.tokens = input.ids();
  text.target = target.ids();
  text.is_truncated = input.is_truncated || target.is_truncated;
  if (text.target.empty() || text.target.back() != end_token_) {
    if (static_cast<int64_t>(text.target.size()) == max_length_) {
      text.target.pop_back();
      text.is_truncated = true;
    }
    text.target.push_back(end_token_);
  }
  text.reference = completion;
  return text;
}

SupervisedText SupervisedEncoder::encode(const TextRow& row) const {
  SupervisedText text;
  if (is_conversation(row)) {
    TESSERA_CHECK(
        chat_.has_value(),
        "{}: '{}' is a conversation, but the tokenizer in '{}' has no chat template",
        row.place(),
        options_.messages,
        folder_.string());
    text = conversation(row);
  } else {
    const std::string& completion = text_of(row, options_.completion);
    const std::string prompt =
        template_ ? template_->fill(row) : text_of(row, options_.prompt);
    TESSERA_CHECK(
        !completion.empty(),
        "{}: '{}' is empty; there is nothing to learn",
        row.place(),
        options_.completion);
    text = kind_ == PromptKind::kDecoder ? continued(prompt, completion)
                                         : translated(prompt, completion);
  }
  const size_t whole = text.tokens.size();
  shorten(text, max_length_);
  TESSERA_CHECK(
      text.learned() > 0,
      "{}: the row has {} tokens, and none of the first {} (model.max_length) is to be learned; raise it, or shorten what is before the answer",
      row.place(),
      whole,
      max_length_);
  TESSERA_CHECK(!text.tokens.empty(), "{}: the prompt is empty", row.place());
  for (const std::vector<int64_t>* ids : {&text.tokens, &text.target}) {
    for (const int64_t id : *ids) {
      TESSERA_CHECK(
          id < vocab_,
          "{}: the tokenizer in '{}' gives '{}' the id {}, but the model has {} tokens; use the tokenizer of the model",
          row.place(),
          folder_.string(),
          tokenizer_.token(id),
          id,
          vocab_);
    }
  }
  if (is_conversation(row)) {
    const TokenRange last = text.answers.back();
    text.reference = tokenizer_.decode(
        {text.tokens.begin() + last.begin, text.tokens.begin() + last.end},
        /*skip_special_tokens=*/true);
  }
  return text;
}

std::vector<SupervisedText> SupervisedEncoder::read(
    const std::vector<std::string>& files) const {
  std::vector<SupervisedText> texts;
  for (const auto& file : matching_files(files)) {
    const size_t before = texts.size();
    int64_t truncated = 0;
    bool lacks_template = false;
    for_each_row({file}, options_.rows, [&](const TextRow& row) {
      // No row that lacks something: it would be left out.
      if (is_conversation(row) && !chat_) {
        lacks_template = true;
        return;
      }
      texts.push_back(encode(row));
      truncated += texts.back().is_truncated ? 1 : 0;
    });
    if (lacks_template) {
      const ChatPrompt refused(tokenizer_.settings(), folder_.string());
    }
    TESSERA_CHECK(
        texts.size() > before,
        "'{}' has no rows that can be used",
        file.string());
    if (truncated > 0 && is_log_rank_zero()) {
      log_warning(
          "'{}': {} of {} rows are longer than model.max_length, {} tokens, and lose their end",
          file.string(),
          truncated,
          texts.size() - before,
          max_length_);
    }
  }
  return texts;
}

} // namespace tessera::zoo
