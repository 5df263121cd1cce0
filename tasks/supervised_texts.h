// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SupervisedEncoder` makes tokens of rows that are conversations, or prompts
// and completions, and says which of them a model learns to write.

#include "tessera/tasks/prompt_batches.h"
#include "tessera/tasks/prompt_template.h"
#include "tessera/tasks/supervised_presets.h"
#include "tessera/text/chat/chat_prompt.h"
#include "tessera/text/rows/text_rows.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tasks {

/// The options of the task supervised: parts of the section `data`.
struct SupervisedOptions {
  std::optional<SupervisedPreset> preset; ///< nullopt: rows have these keys
  /// Keys of rows. A row with messages is a conversation.
  std::string messages = "messages";
  std::string prompt = "prompt";
  std::string completion = "completion";
  /// Of a PromptTemplate that ends with kCompletionPlace, instead of `prompt`;
  /// empty: there is none.
  std::string prompt_template;
  text::TextRowOptions rows;
  /// Several rows in one sequence; nullopt: if the model can keep them apart.
  std::optional<bool> packed;
  std::vector<std::string> metrics; ///< of generated texts; empty: none
  /// Held-out rows for which texts are generated, if metrics of these are asked
  /// for.
  int64_t generate_heldout = 100;
  int64_t max_new_tokens = 128; ///< of these texts
  /// ROUGE compares stems of words.
  bool rouge_stemmer = false;
};

/// Whether an answer is empty, or of whitespace alone.
bool is_blank(std::string_view text);

inline constexpr std::string_view kCompletionPlace = "[completion]";

/// Tokens [begin, end) of a text.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const TokenRange&) const = default;
};

/// A row as tokens.
struct SupervisedText {
  /// Of decoders the whole row, of encoder-decoders the input.
  std::vector<int64_t> tokens;
  /// Of decoders: the tokens that are learned, in order; the first token of a
  /// row is not among them, because nothing is before it.
  std::vector<TokenRange> answers;
  std::vector<int64_t> target; ///< of encoder-decoders
  /// The completion, or what the last answer says.
  std::string reference;
  bool is_truncated = false;
  /// Of a conversation that is not truncated: the tokens of the prompt for its
  /// last answer, as `tessera generate --chat` makes it, where `tokens` do not
  /// begin with them. Otherwise empty.
  std::vector<int64_t> other_prompt;
  /// Of a conversation that is not truncated: how many of `tokens` are that
  /// prompt, if they begin with it.
  int64_t prompt_tokens = 0;

  /// The number of tokens that are learned.
  int64_t learned() const;
  /// What the last answer is generated from; of encoder-decoders the input.
  std::vector<int64_t> prompt() const;
};

class SupervisedEncoder {
 public:
  /// @param folder of the tokenizer, for messages.
  /// @param vocab of the model; ids are less.
  /// @param max_length of a row, of input and target each.
  /// @param limit what that is, for messages.
  /// @throws tessera::Error on a malformed template, and without an eos_token.
  SupervisedEncoder(
      text::Tokenizer tokenizer,
      SupervisedOptions options,
      PromptKind kind,
      std::filesystem::path folder,
      int64_t vocab,
      int64_t max_length,
      std::string limit = "model.max_length");

  /// A conversation is rendered by the tokenizer's chat template; learned are
  /// the assistant's answers, see ChatPrompt::render_with_answers(): tokens
  /// with a byte of one. Of prompt and completion, which are tokenized
  /// together, learned are tokens that reach beyond the prompt and the
  /// eos_token, which is added. What is too long loses its end.
  /// @throws tessera::Error naming the row and what is missing or wrong, also
  ///     if nothing is left to learn.
  SupervisedText encode(const text::TextRow& row) const;

  /// Encodes all rows of files, and logs how many are truncated. Warns if
  /// conversations do not begin with the prompt that is made to answer them, or
  /// if no answer ends with a token that ends generation.
  /// @throws tessera::Error as encode() and for_each_row(), and if a file has
  ///     no rows that can be used.
  std::vector<SupervisedText> read(const std::vector<std::string>& files) const;

  const text::Tokenizer& tokenizer() const {
    return tokenizer_;
  }
  /// Of a row.
  int64_t max_length() const {
    return max_length_;
  }
  const std::string& limit() const {
    return limit_;
  }

 private:
  /// The row with the keys of the options, if it is one of a preset.
  text::TextRow with_keys(const text::TextRow& row) const;
  /// encode() of such a row.
  SupervisedText encode_keys(const text::TextRow& row) const;
  SupervisedText conversation(const text::TextRow& row) const;
  /// Fills in the prompt for the last answer.
  void add_prompt(
      SupervisedText& text,
      const nlohmann::ordered_json& messages,
      const nlohmann::ordered_json& tools,
      const std::string& place) const;
  /// "" if the answers of conversations end with a token that ends generation;
  /// else what they end with.
  std::string missing_end(const std::vector<SupervisedText>& texts, size_t from)
      const;
  void warn_about_chats(
      const std::vector<SupervisedText>& texts,
      const std::vector<std::string>& locations,
      size_t from) const;
  SupervisedText continued(
      const std::string& prompt,
      const std::string& completion) const;
  SupervisedText translated(
      const std::string& prompt,
      const std::string& completion) const;
  const std::string& text_of(const text::TextRow& row, const std::string& key)
      const;
  bool is_conversation(const text::TextRow& row) const {
    return row.values.contains(options_.messages);
  }

  text::Tokenizer tokenizer_;
  SupervisedOptions options_;
  PromptKind kind_;
  std::filesystem::path folder_;
  int64_t vocab_;
  int64_t max_length_;
  std::string limit_;
  int64_t end_token_;
  std::optional<PromptTemplate> template_;
  std::optional<text::ChatPrompt>
      chat_; ///< nullopt: the tokenizer has no template
};

} // namespace tessera::tasks
