// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/tokenizer.h"

#include "tessera/runtime/core/cpu_quota.h"
#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

namespace tessera::text {

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 31;

const std::string kNoToken;

/// A cache that a call uses on its own, given back at its end.
class CacheLease {
 public:
  explicit CacheLease(const TokenizerReader::Parts& parts) : parts_(parts) {
    const std::lock_guard lock(parts.mutex);
    if (!parts.caches.empty()) {
      cache_ = std::move(parts.caches.back());
      parts.caches.pop_back();
    }
  }
  ~CacheLease() {
    const std::lock_guard lock(parts_.mutex);
    parts_.caches.push_back(std::move(cache_));
  }
  CacheLease(const CacheLease&) = delete;
  CacheLease& operator=(const CacheLease&) = delete;

  TokenModelCache& operator*() {
    if (cache_ == nullptr) {
      cache_ = parts_.model->make_cache();
    }
    return *cache_;
  }

 private:
  const TokenizerReader::Parts& parts_;
  std::unique_ptr<TokenModelCache> cache_;
};

/// Tokenizes one text, without what a post-processor does.
class TextEncoder {
 public:
  TextEncoder(
      const TokenizerReader::Parts& parts,
      const EncodeOptions& options,
      TokenModelCache& cache)
      : parts_(parts), options_(options), cache_(cache) {}

  TokenSequence encode(std::string_view given, int32_t text, int64_t type_id) {
    TESSERA_CHECK(
        given.size() < kMaxTextBytes,
        "a text of {} bytes is too long to tokenize; divide it into texts of less than 2 GiB",
        given.size());
    text_ = text;
    type_id_ = type_id;
    tokens_.clear();
    words_ = 0;
    std::string storage;
    const std::string_view full = valid_utf8(given, storage);
    const size_t kind = options_.splits_special_tokens ? 1 : 0;
    if (parts_.raw[kind]->is_empty()) {
      if (!full.empty()) {
        add_text(full, {0, static_cast<uint32_t>(full.size())}, kind);
      }
      return std::move(tokens_);
    }
    for (const TextPart& part : parts_.raw[kind]->parts_of(full)) {
      if (part.id) {
        add_added(part, part.bytes);
      } else {
        add_text(full, part.bytes, kind);
      }
    }
    return std::move(tokens_);
  }

 private:
  void add(int64_t id, ByteRange bytes, int32_t word) {
    tokens_.push_back(
        {.id = id,
         .type_id = type_id_,
         .bytes = options_.with_offsets ? bytes : ByteRange{},
         .word = word,
         .text = text_});
  }

  void add_added(const TextPart& part, ByteRange bytes) {
    add(*part.id, bytes, words_++);
    tokens_.back().spaces_before = static_cast<uint16_t>(part.spaces_before);
    tokens_.back().spaces_after = static_cast<uint16_t>(part.spaces_after);
  }

  /// What lies between added tokens of the text as given.
  void add_text(std::string_view full, ByteRange bytes, size_t kind) {
    AlignedText text(
        full.substr(bytes.begin, bytes.size()),
        bytes.begin,
        options_.with_offsets);
    if (parts_.normalizer != nullptr) {
      parts_.normalizer->apply(text);
    }
    if (parts_.normalized[kind]->is_empty()) {
      add_words(text);
      return;
    }
    for (const TextPart& part :
         parts_.normalized[kind]->parts_of(text.text())) {
      if (part.id) {
        add_added(
            part,
            options_.with_offsets ? text.origin(part.bytes) : ByteRange{});
      } else {
        AlignedText between = text.part(part.bytes);
        add_words(between);
      }
    }
  }

  void add_words(AlignedText& text) {
    if (parts_.pre_tokenizer != nullptr) {
      parts_.pre_tokenizer->apply(text);
    }
    for (size_t i = 0; i < text.words().size(); ++i) {
      const ByteRange word = text.words()[i];
      if (word.size() == 0) {
        continue;
      }
      found_.clear();
      parts_.model->append(text.word(i), cache_, found_);
      for (const WordToken& token : found_) {
        add(token.id,
            options_.with_offsets ? text.origin(
                                        {word.begin + token.bytes.begin,
                                         word.begin + token.bytes.end})
                                  : ByteRange{},
            words_);
      }
      ++words_;
    }
  }

  const TokenizerReader::Parts& parts_;
  const EncodeOptions& options_;
  TokenModelCache& cache_;
  int32_t text_ = 0;
  int64_t type_id_ = 0;
  int32_t words_ = 0;
  TokenSequence tokens_;
  std::vector<WordToken> found_;
};

Encoding encode_texts(
    const TokenizerReader::Parts& parts,
    const std::vector<std::string_view>& texts,
    const EncodeOptions& options,
    TokenModelCache& cache) {
  TextEncoder encoder(parts, options, cache);
  std::vector<TokenSequence> sequences;
  for (size_t i = 0; i < texts.size(); ++i) {
    try {
      sequences.push_back(encoder.encode(
          texts[i], static_cast<int32_t>(i), static_cast<int64_t>(i)));
    } catch (const Error& error) {
      TESSERA_FAIL("{}: {}", parts.origin, error.what());
    }
  }
  Encoding result;
  Truncation truncation = options.truncation;
  truncation.side = truncation.side.value_or(parts.settings.truncation_side);
  const bool is_pair = texts.size() > 1;
  const auto added = static_cast<int64_t>(
      parts.post_processor != nullptr && options.add_special_tokens
          ? parts.post_processor->added_count(is_pair)
          : 0);
  if (truncation.max_length > 0) {
    TESSERA_CHECK(
        truncation.max_length >= added,
        "max_length is {}, but the tokenizer adds {} special tokens; give a greater one, or leave them out",
        truncation.max_length,
        added);
    result.is_truncated = truncate(
        sequences[0],
        is_pair ? &sequences[1] : nullptr,
        truncation.max_length - added,
        truncation);
  }
  if (parts.post_processor != nullptr) {
    parts.post_processor->apply(sequences, options.add_special_tokens);
  }
  result.tokens = std::move(sequences[0]);
  for (size_t i = 1; i < sequences.size(); ++i) {
    std::move(
        sequences[i].begin(),
        sequences[i].end(),
        std::back_inserter(result.tokens));
  }
  return result;
}

} // namespace

std::vector<int64_t> Encoding::ids() const {
  std::vector<int64_t> all;
  all.reserve(tokens.size());
  for (const PlacedToken& token : tokens) {
    all.push_back(token.id);
  }
  return all;
}

void Tokenizer::Parts::prepare() {
  for (size_t kind = 0; kind < 2; ++kind) {
    std::vector<AddedToken> tokens[2];
    std::vector<std::string> texts[2];
    for (const auto& [id, token] : added) {
      if (kind == 1 && token.is_special) {
        continue;
      }
      const size_t side = token.is_normalized ? 1 : 0;
      std::string looked_for = token.content;
      if (token.is_normalized && normalizer != nullptr) {
        AlignedText text(token.content, 0, /*keeps_origins=*/false);
        normalizer->apply(text);
        looked_for = text.text();
      }
      decoded[id] = looked_for;
      tokens[side].push_back(token);
      texts[side].push_back(std::move(looked_for));
    }
    raw[kind] =
        std::make_unique<AddedTokenFinder>(std::move(tokens[0]), texts[0]);
    normalized[kind] =
        std::make_unique<AddedTokenFinder>(std::move(tokens[1]), texts[1]);
  }
  for (const auto& [id, token] : added) {
    added_ids.emplace(token.content, id);
  }
}

Tokenizer TokenizerReader::tokenizer(std::shared_ptr<Tokenizer::Parts> parts) {
  parts->prepare();
  return Tokenizer(std::move(parts));
}

Tokenizer::Tokenizer(std::shared_ptr<const Parts> parts)
    : parts_(std::move(parts)) {}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options)
    const {
  CacheLease cache(*parts_);
  return encode_texts(*parts_, {text}, options, *cache);
}

Encoding Tokenizer::encode_pair(
    std::string_view first,
    std::string_view second,
    const EncodeOptions& options) const {
  CacheLease cache(*parts_);
  return encode_texts(*parts_, {first, second}, options, *cache);
}

std::vector<Encoding> Tokenizer::encode_batch(
    const std::vector<std::string_view>& texts,
    const EncodeOptions& options,
    size_t threads) const {
  std::vector<Encoding> results(texts.size());
  if (threads == 0) {
    threads = static_cast<size_t>(runtime::usable_cpus());
  }
  threads = std::min(threads, texts.size());
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(std::max<size_t>(threads, 1));
  const auto work = [&](size_t thread) {
    try {
      CacheLease cache(*parts_);
      for (size_t i = next++; i < texts.size(); i = next++) {
        results[i] = encode_texts(*parts_, {texts[i]}, options, *cache);
      }
    } catch (...) {
      errors[thread] = std::current_exception();
      next = texts.size();
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t thread = 1; thread < threads; ++thread) {
      others.emplace_back(work, thread);
    }
    work(0);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
  return results;
}

std::vector<int64_t> Tokenizer::ids(std::string_view text) const {
  return encode(text, {.add_special_tokens = false}).ids();
}

namespace {

/// The tokens that a text is decoded from.
std::vector<std::string> decoded_tokens(
    const Tokenizer& tokenizer,
    const std::vector<int64_t>& ids,
    bool skips_special) {
  const auto& decoded = TokenizerReader::parts_of(tokenizer).decoded;
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int64_t id : ids) {
    const auto added = decoded.find(id);
    const std::string& text =
        added != decoded.end() ? added->second : tokenizer.token(id);
    if (!text.empty() && !(skips_special && tokenizer.is_special(id))) {
      tokens.push_back(text);
    }
  }
  return tokens;
}

/// Whether ids that follow `ids` are decoded as after all that stand before
/// them.
bool is_context(
    const Tokenizer& tokenizer,
    const std::vector<int64_t>& ids,
    bool skips_special) {
  const auto tokens = decoded_tokens(tokenizer, ids, skips_special);
  const auto& decoder = TokenizerReader::parts_of(tokenizer).decoder;
  return !tokens.empty() && (decoder == nullptr || decoder->is_context(tokens));
}

/// More than a character has.
constexpr size_t kFewestBefore = 16;

/// The end of `ids`, enough to decode what follows.
std::vector<int64_t> context_in(
    const Tokenizer& tokenizer,
    std::vector<int64_t> ids,
    bool skips_special) {
  for (size_t count = kFewestBefore; count < ids.size(); count *= 2) {
    std::vector<int64_t> last(
        ids.end() - static_cast<int64_t>(count), ids.end());
    if (is_context(tokenizer, last, skips_special)) {
      return last;
    }
  }
  return ids;
}

} // namespace

std::string Tokenizer::decode(
    const std::vector<int64_t>& ids,
    bool skip_special_tokens) const {
  std::vector<std::string> parts =
      decoded_tokens(*this, ids, skip_special_tokens);
  std::string text;
  if (parts_->decoder != nullptr) {
    parts_->decoder->apply(parts);
    for (const std::string& part : parts) {
      text += part;
    }
  } else {
    for (size_t i = 0; i < parts.size(); ++i) {
      text += (i == 0 ? "" : " ") + parts[i];
    }
  }
  std::string storage;
  return std::string(valid_utf8(text, storage));
}

EncodedBatch Tokenizer::pad(
    const std::vector<Encoding>& rows,
    const PadOptions& options) const {
  int64_t length = options.length;
  for (const Encoding& row : rows) {
    const auto row_length = static_cast<int64_t>(row.tokens.size());
    TESSERA_CHECK(
        options.length == 0 || row_length <= options.length,
        "a row has {} tokens and cannot be padded to {}; truncate it when it is encoded",
        row_length,
        options.length);
    length = std::max(length, row_length);
  }
  TESSERA_CHECK(
      options.multiple_of > 0,
      "rows cannot be padded to a multiple of {}; give a number above 0",
      options.multiple_of);
  length = (length + options.multiple_of - 1) / options.multiple_of *
           options.multiple_of;
  EncodedBatch batch{
      .rows = static_cast<int64_t>(rows.size()), .length = length};
  const Side side = options.side.value_or(parts_->settings.padding_side);
  for (const Encoding& row : rows) {
    const size_t missing = static_cast<size_t>(length) - row.tokens.size();
    const auto add_padding = [&] {
      if (missing == 0) {
        return;
      }
      const auto pad = special_id("pad_token");
      TESSERA_CHECK(
          pad.has_value(),
          "{} names no pad_token, which rows of different lengths need; set \"pad_token\" in tokenizer_config.json, e.g. to the eos_token",
          parts_->origin);
      batch.input_ids.insert(batch.input_ids.end(), missing, *pad);
      batch.token_type_ids.insert(batch.token_type_ids.end(), missing, 0);
      batch.attention_mask.insert(batch.attention_mask.end(), missing, 0);
    };
    if (side == Side::kLeft) {
      add_padding();
    }
    for (const PlacedToken& token : row.tokens) {
      batch.input_ids.push_back(token.id);
      batch.token_type_ids.push_back(token.type_id);
      batch.attention_mask.push_back(1);
    }
    if (side == Side::kRight) {
      add_padding();
    }
  }
  return batch;
}

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  const auto added = parts_->added_ids.find(token);
  if (added != parts_->added_ids.end()) {
    return added->second;
  }
  const auto id = parts_->model->find(token);
  return id ? std::optional<int64_t>(*id) : std::nullopt;
}

const std::string& Tokenizer::token(int64_t id) const {
  const auto added = parts_->added.find(id);
  if (added != parts_->added.end()) {
    return added->second.content;
  }
  return id >= 0 && id < static_cast<int64_t>(parts_->model->size())
             ? parts_->model->token(static_cast<uint32_t>(id))
             : kNoToken;
}

int64_t Tokenizer::size() const {
  const int64_t added =
      parts_->added.empty() ? 0 : parts_->added.rbegin()->first + 1;
  return std::max<int64_t>(parts_->model->size(), added);
}

bool Tokenizer::is_special(int64_t id) const {
  const auto added = parts_->added.find(id);
  return added != parts_->added.end() && added->second.is_special;
}

std::optional<int64_t> Tokenizer::special_id(const char* name) const {
  for (const auto& [key, token] : parts_->settings.special_tokens) {
    if (key == name) {
      return id_of(token);
    }
  }
  return std::nullopt;
}

const TokenizerSettings& Tokenizer::settings() const {
  return parts_->settings;
}

DecodeStream::DecodeStream(
    Tokenizer tokenizer,
    bool skip_special_tokens,
    std::vector<int64_t> before)
    : tokenizer_(std::move(tokenizer)),
      skips_special_(skip_special_tokens),
      ids_(context_in(tokenizer_, std::move(before), skips_special_)),
      prefix_count_(ids_.size()),
      prefix_(tokenizer_.decode(ids_, skips_special_)) {}

std::string DecodeStream::add(int64_t id) {
  if (decoded_tokens(tokenizer_, {id}, skips_special_).empty()) {
    return "";
  }
  ids_.push_back(id);
  const auto& decoder = TokenizerReader::parts_of(tokenizer_).decoder;
  if (decoder != nullptr &&
      decoder->may_change(decoded_tokens(tokenizer_, ids_, skips_special_))) {
    return "";
  }
  std::string completed = rest();
  if (completed.empty() || completed.ends_with(kReplacementUtf8)) {
    return "";
  }
  std::vector<int64_t> last(
      ids_.begin() + static_cast<int64_t>(prefix_count_), ids_.end());
  if (is_context(tokenizer_, last, skips_special_)) {
    ids_ = std::move(last);
    prefix_ = tokenizer_.decode(ids_, skips_special_);
  } else {
    prefix_ += completed;
  }
  prefix_count_ = ids_.size();
  return completed;
}

std::string DecodeStream::finish() {
  std::string last = rest();
  ids_.clear();
  prefix_.clear();
  prefix_count_ = 0;
  return last;
}

std::string DecodeStream::rest() {
  std::string text = tokenizer_.decode(ids_, skips_special_);
  if (text.starts_with(prefix_)) {
    return text.substr(prefix_.size());
  }
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<int64_t>(prefix_count_));
  prefix_.clear();
  prefix_count_ = 0;
  return tokenizer_.decode(ids_, skips_special_);
}

} // namespace tessera::text
