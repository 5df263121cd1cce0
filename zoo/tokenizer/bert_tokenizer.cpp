// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>

namespace tessera::zoo {
namespace {

std::int64_t require_token(
    const Vocabulary& vocabulary,
    const std::string& token,
    const char* role) {
  const auto id = vocabulary.find(token);
  TESSERA_CHECK(
      id,
      "the vocabulary of {} tokens lacks the {} '{}'; is this vocab.txt one of a BERT model, and does tokenizer_config.json name the token as the vocabulary does?",
      vocabulary.size(),
      role,
      token);
  return *id;
}

// How many ids of each text fit into `budget`: the longer text is truncated to
// the length of the shorter one, then both to half of the budget.
std::pair<std::size_t, std::size_t> longest_first(
    std::size_t first,
    std::size_t second,
    std::size_t budget) {
  if (first + second <= budget) {
    return {first, second};
  }
  const std::size_t shorter = std::min(first, second);
  std::size_t kept_shorter = shorter;
  std::size_t kept_longer = 0;
  if (2 * shorter <= budget) {
    kept_longer = budget - shorter;
  } else {
    kept_shorter = budget / 2;
    kept_longer = budget - kept_shorter;
  }
  return first > second ? std::pair{kept_longer, kept_shorter}
                        : std::pair{kept_shorter, kept_longer};
}

} // namespace

BertTokenizer::BertTokenizer(
    Vocabulary vocabulary,
    BertTokenizerOptions options)
    : options_(std::move(options)),
      wordpiece_(std::move(vocabulary), options_.wordpiece),
      cls_id_(require_token(
          this->vocabulary(),
          options_.cls_token,
          "classification token")),
      sep_id_(require_token(
          this->vocabulary(),
          options_.sep_token,
          "separator token")),
      pad_id_(require_token(
          this->vocabulary(),
          options_.pad_token,
          "padding token")) {
  require_token(
      this->vocabulary(), options_.wordpiece.unk_token, "unknown token");
  std::vector<std::string> whole = options_.whole_tokens;
  whole.insert(
      whole.end(),
      {options_.wordpiece.unk_token,
       options_.cls_token,
       options_.sep_token,
       options_.pad_token});
  for (const std::string& token : whole) {
    TESSERA_CHECK(!token.empty(), "a token that is never split is empty");
    const auto id = this->vocabulary().find(token);
    if (id) { // if the vocabulary lacks [MASK], it is plain text
      whole_tokens_.emplace_back(token, *id);
    }
  }
  std::sort(
      whole_tokens_.begin(),
      whole_tokens_.end(),
      [](const auto& a, const auto& b) {
        return a.first.size() > b.first.size();
      });
}

std::vector<std::int64_t> BertTokenizer::ids(std::string_view text) const {
  std::vector<std::int64_t> result;
  const auto cache = wordpiece_.make_cache();
  std::vector<WordToken> tokens;
  const auto append_plain = [&](std::string_view part) {
    for (const std::string& word : split_bert_words(part, options_.text)) {
      tokens.clear();
      wordpiece_.append(word, *cache, tokens);
      for (const WordToken& token : tokens) {
        result.push_back(token.id);
      }
    }
  };
  std::size_t plain_start = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const auto whole = std::find_if(
        whole_tokens_.begin(), whole_tokens_.end(), [&](const auto& token) {
          return rest.starts_with(token.first);
        });
    if (whole == whole_tokens_.end()) {
      ++i;
      continue;
    }
    append_plain(text.substr(plain_start, i - plain_start));
    result.push_back(whole->second);
    i += whole->first.size();
    plain_start = i;
  }
  append_plain(text.substr(plain_start));
  return result;
}

Encoding BertTokenizer::encode(
    std::string_view text,
    const EncodeOptions& options) const {
  return joined(ids(text), {}, false, options);
}

Encoding BertTokenizer::encode_pair(
    std::string_view first,
    std::string_view second,
    const EncodeOptions& options) const {
  return joined(ids(first), ids(second), true, options);
}

Encoding BertTokenizer::joined(
    std::vector<std::int64_t> first,
    std::vector<std::int64_t> second,
    bool is_pair,
    const EncodeOptions& options) const {
  const std::int64_t added = options.add_special_tokens ? (is_pair ? 3 : 2) : 0;
  bool is_truncated = false;
  if (options.max_length != 0) {
    TESSERA_CHECK(
        options.max_length >= added,
        "max_length is {}, less than the {} special tokens alone; use a larger max_length",
        options.max_length,
        added);
    const auto [kept_first, kept_second] = longest_first(
        first.size(),
        second.size(),
        static_cast<std::size_t>(options.max_length - added));
    is_truncated = kept_first < first.size() || kept_second < second.size();
    first.resize(kept_first);
    second.resize(kept_second);
  }

  Encoding result;
  result.is_truncated = is_truncated;
  auto& ids = result.input_ids;
  if (options.add_special_tokens) {
    ids.push_back(cls_id_);
  }
  ids.insert(ids.end(), first.begin(), first.end());
  if (options.add_special_tokens) {
    ids.push_back(sep_id_);
  }
  result.token_type_ids.assign(ids.size(), 0);
  ids.insert(ids.end(), second.begin(), second.end());
  if (is_pair && options.add_special_tokens) {
    ids.push_back(sep_id_);
  }
  result.token_type_ids.resize(ids.size(), 1);
  result.attention_mask.assign(ids.size(), 1);
  return result;
}

EncodedBatch BertTokenizer::pad(
    const std::vector<Encoding>& rows,
    const PadOptions& options) const {
  TESSERA_CHECK(
      options.length >= 0 && options.multiple_of >= 1,
      "padding to length {} and a multiple of {} is not possible; use a length of 0 (the longest row) or more and a multiple of 1 or more",
      options.length,
      options.multiple_of);
  std::int64_t longest = 0;
  for (const Encoding& row : rows) {
    longest =
        std::max(longest, static_cast<std::int64_t>(row.input_ids.size()));
  }
  TESSERA_CHECK(
      options.length == 0 || longest <= options.length,
      "a row of {} tokens does not fit the padded length {}; encode with max_length = {}",
      longest,
      options.length,
      options.length);

  EncodedBatch batch;
  batch.rows = static_cast<std::int64_t>(rows.size());
  batch.length = options.length == 0 ? longest : options.length;
  batch.length = (batch.length + options.multiple_of - 1) /
                 options.multiple_of * options.multiple_of;
  const auto append = [](std::vector<std::int64_t>& flat,
                         const std::vector<std::int64_t>& row,
                         std::int64_t length,
                         std::int64_t value) {
    flat.insert(flat.end(), row.begin(), row.end());
    flat.insert(
        flat.end(), static_cast<std::size_t>(length) - row.size(), value);
  };
  for (const Encoding& row : rows) {
    append(batch.input_ids, row.input_ids, batch.length, pad_id_);
    append(batch.token_type_ids, row.token_type_ids, batch.length, 0);
    append(batch.attention_mask, row.attention_mask, batch.length, 0);
  }
  return batch;
}

} // namespace tessera::zoo
