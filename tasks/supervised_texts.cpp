// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/supervised_texts.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/tasks/row_report.h"
#include "tessera/tasks/text_batches.h"
#include "tessera/text/chat/jinja_text.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/zoo/generation/generate_options.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace tessera::tasks {

namespace {

using nlohmann::ordered_json;

/// The ranges of tokens that `is_learned` holds for; not the first token.
template <typename Predicate>
std::vector<TokenRange> learned_ranges(
    const text::TokenSequence& tokens,
    const Predicate& is_learned) {
  std::vector<TokenRange> ranges;
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (!is_learned(tokens[i])) {
      continue;
    }
    const auto position = static_cast<int64_t>(i);
    if (ranges.empty() || ranges.back().end < position) {
      ranges.push_back({position, position});
    }
    ranges.back().end = position + 1;
  }
  return ranges;
}

/// "user, bot".
std::string roles_of(const ordered_json& messages) {
  std::vector<std::string> roles;
  for (const auto& message : messages) {
    const std::string role = message["role"];
    if (std::find(roles.begin(), roles.end(), role) == roles.end()) {
      roles.push_back(role);
    }
  }
  return runtime::join_names(roles);
}

/// How many things a message says beside its content: calls, thoughts.
size_t count_more(const ordered_json& message) {
  const auto has = [&](const char* key) {
    return message.contains(key) && !message[key].empty() && message[key] != "";
  };
  return (has("tool_calls") ? 1 : 0) + (has("function_call") ? 1 : 0) +
         (std::any_of(
              std::begin(text::kReasoningKeys),
              std::end(text::kReasoningKeys),
              has)
              ? 1
              : 0);
}

bool is_blank_text(const ordered_json& value) {
  return value.is_string() && is_blank(value.get_ref<const std::string&>());
}

/// Whether a content, a text or a list of them, says nothing.
bool is_empty_content(const ordered_json& content) {
  return is_blank_text(content) ||
         (content.is_array() &&
          std::all_of(content.begin(), content.end(), [](const auto& part) {
            return part.is_object() && part.contains("text") &&
                   is_blank_text(part["text"]);
          }));
}

/// Checks that a learned answer without content has calls or thoughts that the
/// template writes.
/// @throws tessera::Error naming place, message and what is not written.
void check_written(
    const text::ChatPrompt& chat,
    const ordered_json& messages,
    const std::string& place,
    const std::string& key,
    const ordered_json& tools) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    const auto content = message.find("content");
    const bool has_content = content != message.end() && !content->is_null() &&
                             !is_empty_content(*content);
    if (message["role"] != "assistant" || has_content ||
        !text::is_learned(message)) {
      continue;
    }
    auto unwritten = chat.unwritten_keys(messages, place, tools, i);
    std::erase(unwritten, "name");
    TESSERA_CHECK(
        unwritten.size() < count_more(message),
        "{}: {}[{}] of the role \"assistant\" has an empty 'content', and the chat template does not write its {}, so that an empty answer would be learned; use a template that does, write the answer into 'content', or leave out the row",
        place,
        key,
        i,
        runtime::join_names(unwritten));
  }
}

/// Whether the weight of something that the assistant says is 0.
/// @throws tessera::Error naming place.
bool has_unlearned_answer(
    const ordered_json& messages,
    const std::string& place) {
  try {
    return std::any_of(
        messages.begin(), messages.end(), [](const auto& message) {
          return message["role"] == "assistant" && !text::is_learned(message);
        });
  } catch (const Error& error) {
    TESSERA_FAIL("{}: {}", place, error.what());
  }
}

/// Checks that messages have contents, which templates write as nothing or as
/// "None" where they are absent. Other checks are those of ChatPrompt.
/// @throws tessera::Error naming place, message and role.
void check_contents(
    const ordered_json& messages,
    const std::string& place,
    const std::string& key) {
  for (size_t i = 0; messages.is_array() && i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    if (!message.is_object() || !message.contains("role") ||
        count_more(message) > 0) {
      continue;
    }
    const std::string where = formatted(
        "{}: {}[{}] of the role {}",
        place,
        key,
        i,
        runtime::show_json(nlohmann::json(message["role"])));
    const auto content = message.find("content");
    TESSERA_CHECK(
        content != message.end() && !content->is_null(),
        "{} has no 'content'; add it, or leave out the row",
        where);
    TESSERA_CHECK(
        message["role"] != "assistant" || !is_empty_content(*content),
        "{} has an empty 'content'{}, so that an empty answer would be learned; write one, or leave out such rows with data.skip_bad_rows=true",
        where,
        content->empty() || *content == ""
            ? ""
            : " (without text, or spaces alone)");
  }
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

bool is_blank(std::string_view text) {
  return text::jinja::strip(text).empty();
}

int64_t SupervisedText::learned() const {
  auto count = static_cast<int64_t>(target.size());
  for (const TokenRange& range : answers) {
    count += range.end - range.begin;
  }
  return count;
}

std::vector<int64_t> SupervisedText::prompt() const {
  if (!other_prompt.empty() || answers.empty()) {
    return answers.empty() ? tokens : other_prompt;
  }
  const int64_t end = prompt_tokens > 0 ? prompt_tokens : answers.back().begin;
  return {tokens.begin(), tokens.begin() + end};
}

SupervisedEncoder::SupervisedEncoder(
    text::Tokenizer tokenizer,
    SupervisedOptions options,
    PromptKind kind,
    std::filesystem::path folder,
    int64_t vocab,
    int64_t max_length,
    std::string limit)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      kind_(kind),
      folder_(std::move(folder)),
      vocab_(vocab),
      max_length_(max_length),
      limit_(std::move(limit)) {
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
    const text::TextRow& row,
    const std::string& key) const {
  const auto found = row.values.find(key);
  TESSERA_CHECK(
      found != row.values.end(),
      "{}: there is neither '{}', a conversation, nor '{}', a text, but {}; {}name the keys of the rows in data.messages_key, or in data.prompt_key (or data.template) and data.completion_key{}",
      row.place(),
      options_.messages,
      key,
      text::keys_text(row.values),
      row.values.contains("conversations") ? "set data.preset=sharegpt, or "
      : row.values.contains("instruction") ? "set data.preset=alpaca, or "
                                           : "",
      row.is_of_table
          ? "; of a table without a header, name all columns in data.columns"
          : "");
  TESSERA_CHECK(
      found->is_string(),
      "{}: '{}' is {}; it must be a text",
      row.place(),
      key,
      runtime::show_json(*found));
  return found->get_ref<const std::string&>();
}

SupervisedText SupervisedEncoder::conversation(const text::TextRow& row) const {
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
  const auto values = row.ordered_values();
  const auto tools = values.find("tools");
  const ordered_json listed_tools =
      tools == values.end() ? ordered_json() : *tools;
  // As they are given: several parts without text make lines.
  check_contents(values.at(options_.messages), row.place(), options_.messages);
  const ordered_json messages = chat_->with_read_contents(
      values.at(options_.messages), row.place(), listed_tools);
  const bool has_unlearned = has_unlearned_answer(messages, row.place());
  check_written(*chat_, messages, row.place(), options_.messages, listed_tools);
  chat_->warn_of_unwritten_keys(messages, row.place(), listed_tools);
  const text::RenderedChat chat =
      chat_->render_with_answers(messages, row.place(), listed_tools);
  text::EncodeOptions encode_options;
  encode_options.add_special_tokens = false;
  encode_options.with_offsets = true;
  const text::Encoding encoding = tokenizer_.encode(chat.text, encode_options);
  SupervisedText text;
  text.tokens = encoding.ids();
  // Both are in order.
  auto answer = chat.answers.begin();
  text.answers =
      learned_ranges(encoding.tokens, [&](const text::PlacedToken& token) {
        while (answer != chat.answers.end() &&
               answer->end <= token.bytes.begin) {
          ++answer;
        }
        return answer != chat.answers.end() &&
               token.bytes.end > answer->begin && token.bytes.size() > 0;
      });
  TESSERA_CHECK(
      !text.answers.empty(),
      "{}: '{}' has no answer of the role assistant to learn; the roles are {}{}",
      row.place(),
      options_.messages,
      roles_of(messages),
      has_unlearned ? ", and messages are switched off (weight, train)" : "");
  if (static_cast<int64_t>(text.tokens.size()) <= max_length_) {
    add_prompt(text, messages, listed_tools, row.place());
  }
  return text;
}

void SupervisedEncoder::add_prompt(
    SupervisedText& text,
    const ordered_json& messages,
    const ordered_json& tools,
    const std::string& place) const {
  size_t last = messages.size();
  while (last > 0 && (messages[last - 1]["role"] != "assistant" ||
                      !text::is_learned(messages[last - 1]))) {
    --last;
  }
  if (last <= 1) {
    return; // there is nothing to answer
  }
  auto before = ordered_json::array();
  for (size_t i = 0; i + 1 < last; ++i) {
    before.push_back(messages[i]);
  }
  std::string prompt;
  try {
    prompt = chat_->render(before, place, tools);
  } catch (const Error&) {
    return; // the template answers no such beginning
  }
  text::EncodeOptions encode_options;
  encode_options.add_special_tokens = false;
  std::vector<int64_t> ids = tokenizer_.encode(prompt, encode_options).ids();
  if (ids.size() < text.tokens.size() &&
      std::equal(ids.begin(), ids.end(), text.tokens.begin())) {
    text.prompt_tokens = static_cast<int64_t>(ids.size());
  } else {
    text.other_prompt = std::move(ids);
  }
}

std::string SupervisedEncoder::missing_end(
    const std::vector<SupervisedText>& texts,
    size_t from) const {
  std::vector<int64_t> ends = zoo::generate_options(folder_).eos_token_id;
  ends.push_back(end_token_);
  const SupervisedText* example = nullptr;
  for (size_t i = from; i < texts.size(); ++i) {
    const SupervisedText& text = texts[i];
    if (text.is_truncated ||
        (text.prompt_tokens == 0 && text.other_prompt.empty())) {
      continue; // no conversation, or without its end
    }
    const TokenRange last = text.answers.back();
    if (std::find_first_of(
            text.tokens.begin() + last.begin,
            text.tokens.begin() + last.end,
            ends.begin(),
            ends.end()) != text.tokens.begin() + last.end) {
      return "";
    }
    example = example == nullptr ? &text : example;
  }
  return example == nullptr
             ? ""
             : tokenizer_.token(example->tokens[static_cast<size_t>(
                   example->answers.back().end - 1)]);
}

void SupervisedEncoder::warn_about_chats(
    const std::vector<SupervisedText>& texts,
    const std::vector<std::string>& locations,
    size_t from) const {
  int64_t others = 0;
  size_t first = texts.size();
  for (size_t i = from; i < texts.size(); ++i) {
    if (!texts[i].other_prompt.empty()) {
      first = others++ == 0 ? i : first;
    }
  }
  if (others > 0) {
    const SupervisedText& text = texts[first];
    const auto [found, asked] = std::mismatch(
        text.tokens.begin(),
        text.tokens.end(),
        text.other_prompt.begin(),
        text.other_prompt.end());
    const auto shown = [&](const auto& at, const auto& end) {
      return at == end ? std::string("its end")
                       : runtime::show_json(tokenizer_.token(*at));
    };
    log_warning(
        "{}: the prompt for the last answer, which `tessera generate --chat` makes too, is not how the row begins: after {} tokens it has {}, but the row {} ({} such rows). The model learns to go on from other tokens than it will be given: let the chat template's generation prompt end where tokens end, e.g. without a space",
        locations[first - from],
        found - text.tokens.begin(),
        shown(asked, text.other_prompt.end()),
        shown(found, text.tokens.end()),
        others);
  }
  if (const std::string end = missing_end(texts, from); !end.empty()) {
    log_warning(
        "{}: no answer ends with the eos_token {}, but e.g. with {}, so that the model does not learn to stop: `tessera generate --chat` will go on to --max-new-tokens. Let the chat template write {{{{ eos_token }}}} after what the assistant says, or name the token that it writes as eos_token in tokenizer_config.json or as eos_token_id in generation_config.json",
        locations.front(),
        runtime::show_json(tokenizer_.token(end_token_)),
        runtime::show_json(end));
  }
}

SupervisedText SupervisedEncoder::continued(
    const std::string& prompt,
    const std::string& completion) const {
  text::EncodeOptions encode_options;
  encode_options.with_offsets = true;
  const std::string separator = template_ ? template_->separator() : "";
  text::Encoding encoding =
      tokenizer_.encode(prompt + separator + completion, encode_options);
  text::TokenSequence& tokens = encoding.tokens;
  while (!tokens.empty() && tokens.back().text < 0) {
    tokens.pop_back(); // an end of the text
  }
  if (tokens.empty() || tokens.back().id != end_token_) {
    text::PlacedToken end;
    end.id = end_token_;
    tokens.push_back(end);
  }
  SupervisedText text;
  text.tokens = encoding.ids();
  text.answers = learned_ranges(tokens, [&](const text::PlacedToken& token) {
    return &token == &tokens.back() ||
           (token.text >= 0 && token.bytes.end > prompt.size());
  });
  text.reference = completion;
  return text;
}

SupervisedText SupervisedEncoder::translated(
    const std::string& prompt,
    const std::string& completion) const {
  text::EncodeOptions encode_options;
  encode_options.truncation = {.max_length = max_length_};
  const text::Encoding input = tokenizer_.encode(prompt, encode_options);
  text::Encoding target = tokenizer_.encode(completion, encode_options);
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

text::TextRow SupervisedEncoder::with_keys(const text::TextRow& row) const {
  return options_.preset
             ? row_of_preset(
                   *options_.preset,
                   row,
                   {options_.messages, options_.prompt, options_.completion},
                   chat_.has_value() && kind_ == PromptKind::kDecoder)
             : row;
}

SupervisedText SupervisedEncoder::encode(const text::TextRow& row) const {
  return encode_keys(with_keys(row));
}

SupervisedText SupervisedEncoder::encode_keys(const text::TextRow& row) const {
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
        !is_blank(completion),
        "{}: '{}' is empty{}; there is nothing to learn: write an answer, or leave out such rows with data.skip_bad_rows=true",
        row.place(),
        options_.completion,
        completion.empty() ? "" : " (spaces alone)");
    text = kind_ == PromptKind::kDecoder ? continued(prompt, completion)
                                         : translated(prompt, completion);
  }
  const size_t full = text.tokens.size();
  shorten(text, max_length_);
  TESSERA_CHECK(
      text.learned() > 0,
      "{}: the row has {} tokens, and none of the first {} ({}) is to be learned; raise it, or shorten what is before the answer",
      row.place(),
      full,
      max_length_,
      limit_);
  TESSERA_CHECK(!text.tokens.empty(), "{}: the prompt is empty", row.place());
  for (const std::vector<int64_t>* ids : {&text.tokens, &text.target}) {
    check_token_ids(*ids, tokenizer_, vocab_, folder_, row.place() + ": ");
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
  for (const auto& file : text::matching_files(files)) {
    const size_t before = texts.size();
    RowReport report("row");
    bool lacks_template = false;
    std::vector<std::string> locations;
    text::for_each_row({file}, options_.rows, [&](const text::TextRow& given) {
      const text::TextRow row = with_keys(given);
      // No row that lacks something: it would be left out.
      if (is_conversation(row) && !chat_) {
        lacks_template = true;
        return;
      }
      texts.push_back(encode_keys(row));
      locations.push_back(row.place());
      report.add(texts.back().is_truncated);
    });
    if (lacks_template) {
      const text::ChatPrompt refused(tokenizer_.settings(), folder_.string());
    }
    TESSERA_CHECK(
        texts.size() > before,
        "'{}' has no rows that can be used",
        file.string());
    if (is_log_rank_zero()) {
      warn_about_chats(texts, locations, before);
    }
    report.log_truncated(file.string(), limit_, max_length_);
  }
  return texts;
}

} // namespace tessera::tasks
