// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/normalizer.h"

#include "tessera/text/tokenizer/bert_normalizer.h"
#include "tessera/text/tokenizer/byte_alphabet.h"
#include "tessera/text/tokenizer/character_map.h"
#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/pattern.h"
#include "tessera/text/tokenizer/rewriting.h"
#include "tessera/text/tokenizer/unicode_form.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tessera::text {

namespace {

using runtime::JsonValue;

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(UnicodeForm form) : form_(form) {}
  void apply(AlignedText& text) const override {
    rewrite_in_form(form_, text);
  }

 private:
  UnicodeForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    map_code_points(text, append_lower_case);
  }
};

class StripAccentsNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    if (!is_ascii(text.text())) {
      keep_code_points(
          text,
          [](char32_t c) { return !is_combining_mark(c); },
          [](char32_t c) { return c; });
    }
  }
};

/// Removes white space at the ends.
class StripNormalizer : public Normalizer {
 public:
  struct Ends {
    bool left = true;
    bool right = true;
  };
  explicit StripNormalizer(Ends ends) : ends_(ends) {}

  void apply(AlignedText& text) const override {
    const std::string& old = text.text();
    size_t begin = old.size();
    size_t end = 0;
    for_each_code_point(old, [&](char32_t c, size_t at) {
      if (!is_white_space(c)) {
        begin = std::min(begin, at);
        end = at + utf8_length(old, at);
      }
    });
    begin = ends_.left ? begin : 0;
    end = ends_.right ? end : old.size();
    std::vector<ByteRange> removed;
    const auto remove = [&](size_t from, size_t to) {
      if (from < to) {
        removed.push_back(
            {static_cast<uint32_t>(from), static_cast<uint32_t>(to)});
      }
    };
    remove(0, begin);
    remove(std::max(begin, end), old.size());
    if (!removed.empty()) {
      text.replace(removed, "");
    }
  }

 private:
  Ends ends_;
};

/// The control characters and white space of sentencepiece's nmt rules.
class NmtNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    keep_code_points(text, keeps, map);
  }

 private:
  static bool keeps(char32_t c) {
    return !(
        (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) ||
        c == 0x7f || c == 0x8f || c == 0x9f);
  }
  static char32_t map(char32_t c) {
    const bool is_space = c == 0x9 || c == 0xa || c == 0xc || c == 0xd ||
                          c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
                          c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                          c == 0xfeff || c == 0xfffd;
    return is_space ? U' ' : c;
  }
};

class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(CharacterMap map) : map_(std::move(map)) {}
  void apply(AlignedText& text) const override {
    std::vector<Rewritten> code_points;
    code_points.reserve(text.text().size());
    if (map_.append_mapped(text.text(), code_points)) {
      text.rewrite(code_points);
    }
  }

 private:
  CharacterMap map_;
};

/// Puts a text before a text that is not empty.
class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(const std::string& prefix) {
    for_each_code_point(prefix, [&](char32_t c, size_t) {
      prefix_.push_back({c, 1});
    });
    if (!prefix_.empty()) {
      prefix_[0].change = 0;
    }
  }
  void apply(AlignedText& text) const override {
    if (text.text().empty()) {
      return;
    }
    // The prefix stands where the first character does.
    std::vector<Rewritten> code_points = prefix_;
    code_points.reserve(prefix_.size() + text.text().size());
    for_each_code_point(text.text(), [&](char32_t c, size_t at) {
      code_points.push_back({c, at == 0 ? 1 : 0});
    });
    text.rewrite(code_points);
  }

 private:
  std::vector<Rewritten> prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(AlignedText& text) const override {
    std::vector<ByteRange> matches;
    pattern_.find_all(text.text(), matches);
    if (!matches.empty()) {
      text.replace(matches, content_);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

/// Writes each byte as a printable character. Unlike the pre-tokenizer it makes
/// characters indeed: what comes after it may divide between them.
class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    map_code_points(text, append_byte_characters);
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(
      std::vector<std::unique_ptr<const Normalizer>> parts)
      : parts_(std::move(parts)) {}
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) {
      part->apply(text);
    }
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

std::unique_ptr<const Normalizer> read_bert_normalizer(
    const JsonValue& section) {
  BertNormalizer::Options options;
  options.clean_text = section.at("clean_text").as<bool>();
  options.handle_chinese_chars = section.at("handle_chinese_chars").as<bool>();
  options.lowercase = section.at("lowercase").as<bool>();
  const auto strip_accents = section.find("strip_accents");
  options.strip_accents = strip_accents && !strip_accents->value().is_null()
                              ? strip_accents->as<bool>()
                              : options.lowercase;
  return std::make_unique<BertNormalizer>(options);
}

std::unique_ptr<const Normalizer> read_normalizer_sequence(
    const JsonValue& section) {
  std::vector<std::unique_ptr<const Normalizer>> parts;
  for (const JsonValue& part : section.at("normalizers").elements()) {
    parts.push_back(read_normalizer(part));
  }
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

using ReadNormalizer = std::unique_ptr<const Normalizer>(const JsonValue&);

template <typename Kind>
std::unique_ptr<const Normalizer> make_normalizer(const JsonValue&) {
  return std::make_unique<Kind>();
}

template <UnicodeForm kForm>
std::unique_ptr<const Normalizer> make_form_normalizer(const JsonValue&) {
  return std::make_unique<FormNormalizer>(kForm);
}

struct NormalizerKind {
  const char* name;
  ReadNormalizer* read;
};

constexpr NormalizerKind kNormalizers[] = {
    {"BertNormalizer", read_bert_normalizer},
    {"NFC", make_form_normalizer<UnicodeForm::kNfc>},
    {"NFD", make_form_normalizer<UnicodeForm::kNfd>},
    {"NFKC", make_form_normalizer<UnicodeForm::kNfkc>},
    {"NFKD", make_form_normalizer<UnicodeForm::kNfkd>},
    {"Lowercase", make_normalizer<LowercaseNormalizer>},
    {"StripAccents", make_normalizer<StripAccentsNormalizer>},
    {"Strip",
     [](const JsonValue& section) -> std::unique_ptr<const Normalizer> {
       return std::make_unique<StripNormalizer>(StripNormalizer::Ends{
           section.at("strip_left").as<bool>(),
           section.at("strip_right").as<bool>()});
     }},
    {"Nmt", make_normalizer<NmtNormalizer>},
    {"Precompiled",
     [](const JsonValue& section) -> std::unique_ptr<const Normalizer> {
       return std::make_unique<PrecompiledNormalizer>(
           CharacterMap(decode_base64(
               section.at("precompiled_charsmap").as<std::string>(),
               "precompiled_charsmap")));
     }},
    {"Prepend",
     [](const JsonValue& section) -> std::unique_ptr<const Normalizer> {
       return std::make_unique<PrependNormalizer>(
           section.at("prepend").as<std::string>());
     }},
    {"Replace",
     [](const JsonValue& section) -> std::unique_ptr<const Normalizer> {
       return std::make_unique<ReplaceNormalizer>(
           read_pattern(section.at("pattern")),
           section.at("content").as<std::string>());
     }},
    {"ByteLevel", make_normalizer<ByteLevelNormalizer>},
    {"Sequence", read_normalizer_sequence}};

} // namespace

std::unique_ptr<const Normalizer> normalizer_sequence(
    std::vector<std::unique_ptr<const Normalizer>> parts) {
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

std::unique_ptr<const Normalizer> read_normalizer(
    const runtime::JsonValue& section) {
  const JsonValue type = section.at("type");
  const std::string name = type.as<std::string>();
  std::string names;
  for (const NormalizerKind& kind : kNormalizers) {
    if (name == kind.name) {
      return kind.read(section);
    }
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  type.fail("one of " + names);
}

} // namespace tessera::text
