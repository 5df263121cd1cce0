// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/special_tokens.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/text/tokenizer/utf8.h"
#include "tessera/zoo/formats/hf_folder_writer.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

namespace tessera::zoo {

namespace {

void complete(
    std::optional<int64_t>& token,
    const text::Tokenizer& tokenizer,
    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!token) {
      token = tokenizer.id_of(name);
    }
  }
}

constexpr std::string_view kContinues = "##"; // BERT
constexpr std::string_view kByteSpace = "\xc4\xa0"; // U+0120, for a space
constexpr std::string_view kByteLine = "\xc4\x8a"; // U+010A, for a line feed

bool is_chinese(char32_t c) {
  return (c >= 0x3400 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0x20000 && c <= 0x2fa1f);
}

bool is_all_chinese(std::string_view text) {
  bool all = !text.empty();
  text::for_each_code_point(
      text, [&](char32_t c, size_t /*at*/) { all = all && is_chinese(c); });
  return all;
}

} // namespace

std::optional<text::Tokenizer> objective_tokenizer(
    const std::filesystem::path& path,
    const std::filesystem::path& model_folder) {
  if (!path.empty()) {
    return text::Tokenizer::from_path(path);
  }
  if (!model_folder.empty() && has_tokenizer(model_folder)) {
    return text::Tokenizer::from_folder(model_folder);
  }
  return std::nullopt;
}

SpecialTokens completed(
    SpecialTokens tokens,
    const std::optional<text::Tokenizer>& tokenizer) {
  if (tokenizer) {
    const auto named = [&](std::optional<int64_t>& token, const char* name) {
      if (!token) {
        token = tokenizer->special_id(name);
      }
    };
    named(tokens.start, "cls_token");
    complete(tokens.start, *tokenizer, {"[CLS]", "<s>"});
    named(tokens.end, "sep_token");
    named(tokens.end, "eos_token");
    complete(tokens.end, *tokenizer, {"[SEP]", "</s>"});
    named(tokens.document_end, "eos_token");
    named(tokens.mask, "mask_token");
    complete(tokens.mask, *tokenizer, {"[MASK]", "<mask>"});
    complete(tokens.sentence_mask, *tokenizer, {"[sMASK]"});
    complete(tokens.document_mask, *tokenizer, {"[gMASK]"});
    complete(
        tokens.piece_start, *tokenizer, {"<|startofpiece|>", "<sop>", "sop"});
    complete(tokens.piece_end, *tokenizer, {"<|endofpiece|>", "<eop>", "eop"});
  }
  if (!tokens.sentence_mask) {
    tokens.sentence_mask = tokens.mask;
  }
  if (!tokens.document_mask) {
    tokens.document_mask = tokens.mask;
  }
  return tokens;
}

int64_t needed_token(
    const std::optional<int64_t>& token,
    const char* key,
    ObjectiveKind objective,
    int64_t vocab) {
  TESSERA_CHECK(
      token.has_value(),
      "data.objective \"{}\" needs the token data.special_tokens.{}, which the tokenizer does not have; set it, or data.tokenizer to the folder of the tokenizer that made the token files",
      name_of(objective),
      key);
  TESSERA_CHECK(
      *token < vocab,
      "data.special_tokens.{} is {}, but the model's vocabulary has {} tokens; use the tokenizer of the model",
      key,
      *token,
      vocab);
  return *token;
}

std::vector<int64_t> sentinels_of(
    const SpecialTokens& tokens,
    const std::optional<text::Tokenizer>& tokenizer,
    int64_t count,
    int64_t vocab) {
  std::vector<int64_t> sentinels;
  for (int64_t i = 0; i < count; ++i) {
    std::optional<int64_t> token;
    if (tokens.first_sentinel) {
      const int64_t id = *tokens.first_sentinel - i;
      token = id >= 0 ? std::optional(id) : std::nullopt;
    } else if (tokenizer) {
      token = tokenizer->id_of("<extra_id_" + std::to_string(i) + ">");
    }
    TESSERA_CHECK(
        token.has_value(),
        "data.objective \"span_corruption\" makes {} spans of a text, but there are only {} sentinels (<extra_id_0> and so on in the tokenizer, or data.special_tokens.first_sentinel and the ids below it); lower model.max_length or data.spans.density, or set data.tokenizer",
        count,
        i);
    sentinels.push_back(needed_token(
        token, "first_sentinel", ObjectiveKind::kSpanCorruption, vocab));
  }
  return sentinels;
}

std::vector<bool> sentence_ends_of(
    const std::optional<text::Tokenizer>& tokenizer,
    const std::vector<int64_t>& more,
    int64_t vocab) {
  constexpr std::array<std::string_view, 12> kEnds{
      ".", "?", "!", ";", ":", "\n", kByteLine, "。", "？", "！", "；", "："};
  std::vector<bool> ends(static_cast<size_t>(vocab));
  if (tokenizer) {
    const int64_t known = std::min(vocab, tokenizer->size());
    for (int64_t token = 0; token < known; ++token) {
      const std::string& text = tokenizer->token(token);
      ends[static_cast<size_t>(token)] =
          !tokenizer->is_special(token) &&
          std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) {
            return text.find(end) != std::string::npos;
          });
    }
  }
  for (const int64_t token : more) {
    TESSERA_CHECK(
        token < vocab,
        "data.blanks.sentence_ends has {}, but the model's vocabulary has {} tokens",
        token,
        vocab);
    ends[static_cast<size_t>(token)] = true;
  }
  return ends;
}

WordTable::WordTable(
    const text::Tokenizer& tokenizer,
    const std::filesystem::path& words) {
  struct Mark {
    std::string_view text;
    bool begins;
    int64_t count = 0;
  };
  std::array<Mark, 3> marks{
      Mark{kContinues, false},
      Mark{text::kEscapedSpace, true},
      Mark{kByteSpace, true}};
  for (int64_t id = 0; id < tokenizer.size(); ++id) {
    for (Mark& mark : marks) {
      mark.count += tokenizer.token(id).starts_with(mark.text) ? 1 : 0;
    }
  }
  const Mark& mark = *std::max_element(
      marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
        return a.count < b.count;
      });
  TESSERA_CHECK(
      mark.count > 0,
      "data.mask.whole_word is true, but no token of the tokenizer has a mark of words (\"##\", U+2581 or U+0120); set it to false");
  for (int64_t id = 0; id < tokenizer.size(); ++id) {
    std::string_view text = tokenizer.token(id);
    Token token;
    token.is_special = text.empty() || tokenizer.is_special(id);
    const bool is_marked = text.starts_with(mark.text);
    token.begins = token.is_special || is_marked == mark.begins ||
                   text.starts_with(kByteLine);
    if (is_marked) {
      text.remove_prefix(mark.text.size());
    }
    if (!token.is_special && is_all_chinese(text)) {
      token.begins = true; // a word of its own, but for the list of words
      token.chinese = text;
    }
    tokens_.push_back(std::move(token));
  }
  if (words.empty()) {
    return;
  }
  const std::string file = runtime::read_text_file(words);
  int64_t line = 0;
  for (std::string_view left = file; !left.empty();) {
    ++line;
    const size_t end = std::min(left.find('\n'), left.size());
    std::string_view word = left.substr(0, end);
    left.remove_prefix(std::min(end + 1, left.size()));
    while (!word.empty() && (word.back() == '\r' || word.back() == ' ')) {
      word.remove_suffix(1);
    }
    std::string storage;
    TESSERA_CHECK(
        text::valid_utf8(word, storage).data() == word.data(),
        "'{}' (data.mask.words): line {} is not UTF-8",
        words.string(),
        line);
    if (!word.empty()) {
      words_.emplace(word);
      longest_ = std::max(longest_, word.size());
    }
  }
}

const WordTable::Token& WordTable::at(int64_t token) const {
  static const Token unknown;
  return token < static_cast<int64_t>(tokens_.size())
             ? tokens_[static_cast<size_t>(token)]
             : unknown;
}

void WordTable::number(
    std::span<const int64_t> tokens,
    const std::vector<int64_t>& starts,
    std::span<int64_t> firsts) const {
  size_t next_start = 0;
  bool after_special = true;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    while (next_start < starts.size() && starts[next_start] < position) {
      ++next_start;
    }
    const bool starts_document =
        next_start < starts.size() && starts[next_start] == position;
    const Token& token = at(tokens[i]);
    const bool after_chinese = i > 0 && !at(tokens[i - 1]).chinese.empty();
    firsts[i] = i == 0 || starts_document || token.begins || after_special ||
                        after_chinese
                    ? position
                    : firsts[i - 1];
    after_special = token.is_special;
    if (words_.empty() || token.chinese.empty() || firsts[i] != position) {
      continue;
    }
    // The longest word that begins here.
    std::string text = token.chinese;
    size_t found = 0;
    for (size_t last = i + 1; last < tokens.size(); ++last) {
      const Token& more = at(tokens[last]);
      if (more.chinese.empty() ||
          text.size() + more.chinese.size() > longest_ ||
          std::binary_search(
              starts.begin(), starts.end(), static_cast<int64_t>(last))) {
        break;
      }
      text += more.chinese;
      if (words_.contains(text)) {
        found = last;
      }
    }
    for (; i < found; ++i) {
      firsts[i + 1] = position;
    }
  }
}

} // namespace tessera::zoo
