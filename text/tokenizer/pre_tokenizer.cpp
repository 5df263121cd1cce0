// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/pre_tokenizer.h"

#include "tessera/text/tokenizer/bert_normalizer.h"
#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/pattern.h"
#include "tessera/text/tokenizer/rewriting.h"
#include "tessera/text/tokenizer/split_behavior.h"
#include "tessera/text/tokenizer/utf8.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tessera::text {

namespace {

using runtime::JsonValue;

/// Divides words at the characters of which is_match(code point) is true.
template <typename IsMatch>
void split_at(
    AlignedText& text,
    SplitBehavior behavior,
    const IsMatch& is_match) {
  std::vector<ByteRange> matches;
  text.split_words([&](std::string_view word, std::vector<ByteRange>& parts) {
    matches.clear();
    for_each_code_point(word, [&](char32_t c, size_t at) {
      if (is_match(c)) {
        matches.push_back(
            {static_cast<uint32_t>(at),
             static_cast<uint32_t>(at + utf8_length(word, at))});
      }
    });
    append_parts(word.size(), matches, behavior, false, parts);
  });
}

void split_at_matches(
    AlignedText& text,
    const Pattern& pattern,
    SplitBehavior behavior,
    bool is_inverted) {
  std::vector<ByteRange> matches;
  text.split_words([&](std::string_view word, std::vector<ByteRange>& parts) {
    matches.clear();
    pattern.find_all(word, matches);
    append_parts(word.size(), matches, behavior, is_inverted, parts);
  });
}

/// What stands before a word: it replaces its first character, which is
/// inserted again behind it, so that it stands where that does.
void append_prepended(
    char32_t prefix,
    std::string_view word,
    std::vector<Rewritten>& now) {
  now.push_back({prefix, 0});
  for_each_code_point(word, [&](char32_t c, size_t at) {
    now.push_back({c, at == 0 ? 1 : 0});
  });
}

/// GPT-2's: makes words of bytes.
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  struct Options {
    bool add_prefix_space = true;
    bool use_regex = true; ///< divide by GPT-2's expression
    /// Leave the bytes as they are; otherwise write each as its printable
    /// character, for pre-tokenizers after it.
    bool keeps_bytes = true;
  };
  explicit ByteLevelPreTokenizer(const Options& options) : options_(options) {}

  void apply(AlignedText& text) const override {
    if (options_.add_prefix_space) {
      text.rewrite_words(
          [](std::string_view word, std::vector<Rewritten>& now) {
            if (word.empty() || word.front() == ' ') {
              return AlignedText::kUnchanged;
            }
            append_prepended(' ', word, now);
            return size_t{0};
          });
    }
    if (options_.use_regex) {
      static const Pattern kWords{Regex(
          R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")};
      split_at_matches(text, kWords, SplitBehavior::kIsolated, false);
    }
    if (!options_.keeps_bytes) {
      text.rewrite_words([](std::string_view word,
                            std::vector<Rewritten>& now) {
        for_each_code_point(
            word, [&](char32_t c, size_t) { append_byte_characters(c, now); });
        return size_t{0};
      });
    }
  }
  bool makes_bytes() const override {
    return options_.keeps_bytes;
  }

 private:
  Options options_;
};

class DelimiterPreTokenizer : public PreTokenizer {
 public:
  explicit DelimiterPreTokenizer(char32_t delimiter) : delimiter_(delimiter) {}
  void apply(AlignedText& text) const override {
    split_at(text, SplitBehavior::kRemoved, [this](char32_t c) {
      return c == delimiter_;
    });
  }

 private:
  char32_t delimiter_;
};

class DigitsPreTokenizer : public PreTokenizer {
 public:
  explicit DigitsPreTokenizer(SplitBehavior behavior) : behavior_(behavior) {}
  void apply(AlignedText& text) const override {
    split_at(text, behavior_, is_numeric);
  }

 private:
  SplitBehavior behavior_;
};

/// Words of a number of characters; the last one may have fewer.
class FixedLengthPreTokenizer : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(int64_t length) : length_(length) {}
  void apply(AlignedText& text) const override {
    text.split_words(
        [this](std::string_view word, std::vector<ByteRange>& parts) {
          int64_t has = 0;
          uint32_t begin = 0;
          for_each_code_point(word, [&](char32_t, size_t at) {
            if (has == length_) {
              parts.push_back({begin, static_cast<uint32_t>(at)});
              begin = static_cast<uint32_t>(at);
              has = 0;
            }
            ++has;
          });
          parts.push_back({begin, static_cast<uint32_t>(word.size())});
        });
  }

 private:
  int64_t length_;
};

/// sentencepiece's: writes spaces as another character, and lets words begin
/// with it.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  /// Which words get the character before them if they have it not.
  enum class Prepends { kAlways, kFirst, kNever };
  struct Options {
    char32_t replacement = 0x2581;
    Prepends prepends = Prepends::kAlways;
    bool split = true;
  };
  explicit MetaspacePreTokenizer(const Options& options) : options_(options) {}

  void apply(AlignedText& text) const override {
    size_t i = 0;
    text.rewrite_words(
        [&](std::string_view word, std::vector<Rewritten>& now) -> size_t {
          rewrite(word, text.begins_given_text(i++), now);
          return 0;
        });
    if (options_.split) {
      split_at(text, SplitBehavior::kMergedWithNext, [this](char32_t c) {
        return c == options_.replacement;
      });
    }
  }

 private:
  void rewrite(
      std::string_view word,
      bool is_first,
      std::vector<Rewritten>& now) const {
    if (word.empty()) {
      return;
    }
    const bool prepends = options_.prepends == Prepends::kAlways ||
                          (options_.prepends == Prepends::kFirst && is_first);
    const auto replaced = [this](char32_t c) {
      return c == ' ' ? options_.replacement : c;
    };
    if (prepends && replaced(code_point_at(word, 0)) != options_.replacement) {
      append_prepended(options_.replacement, word, now);
      for (Rewritten& character : now) {
        character.code_point = replaced(character.code_point);
      }
      return;
    }
    for_each_code_point(word, [&](char32_t c, size_t) {
      now.push_back({replaced(c), 0});
    });
  }

  Options options_;
};

class PunctuationPreTokenizer : public PreTokenizer {
 public:
  explicit PunctuationPreTokenizer(SplitBehavior behavior)
      : behavior_(behavior) {}
  void apply(AlignedText& text) const override {
    split_at(text, behavior_, is_punctuation);
  }

 private:
  SplitBehavior behavior_;
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool is_inverted)
      : pattern_(std::move(pattern)),
        behavior_(behavior),
        is_inverted_(is_inverted) {}
  void apply(AlignedText& text) const override {
    split_at_matches(text, pattern_, behavior_, is_inverted_);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool is_inverted_;
};

/// Divides where the script changes. Spaces continue a word, but begin none.
class ScriptsPreTokenizer : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override {
    text.split_words([](std::string_view word, std::vector<ByteRange>& parts) {
      int32_t last = kAnyScript;
      uint32_t begin = 0;
      for_each_code_point(word, [&](char32_t c, size_t at) {
        const int32_t script = script_of(c);
        if (script == kAnyScript || script == last) {
          return;
        }
        if (last != kAnyScript) {
          parts.push_back({begin, static_cast<uint32_t>(at)});
        }
        begin = static_cast<uint32_t>(at);
        last = script;
      });
      if (last != kAnyScript) {
        parts.push_back({begin, static_cast<uint32_t>(word.size())});
      }
    });
  }
};

/// Words of word characters, and of what is neither that nor white space.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override {
    text.split_words([](std::string_view word, std::vector<ByteRange>& parts) {
      enum class Kind { kSpace, kWord, kOther };
      Kind last = Kind::kSpace;
      uint32_t begin = 0;
      const auto end_part = [&](size_t at) {
        if (last != Kind::kSpace) {
          parts.push_back({begin, static_cast<uint32_t>(at)});
        }
        begin = static_cast<uint32_t>(at);
      };
      for_each_code_point(word, [&](char32_t c, size_t at) {
        const Kind kind = is_white_space(c)      ? Kind::kSpace
                          : is_word_character(c) ? Kind::kWord
                                                 : Kind::kOther;
        if (kind != last) {
          end_part(at);
          last = kind;
        }
      });
      end_part(word.size());
    });
  }
};

class WhitespaceSplitPreTokenizer : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override {
    split_at(text, SplitBehavior::kRemoved, is_white_space);
  }
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(
      std::vector<std::unique_ptr<const PreTokenizer>> parts)
      : parts_(std::move(parts)) {}
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) {
      part->apply(text);
    }
  }
  bool makes_bytes() const override {
    return !parts_.empty() && parts_.back()->makes_bytes();
  }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

/// Whether another pre-tokenizer sees the words.
enum class Place { kLast, kBeforeOthers };

using PreTokenizerPointer = std::unique_ptr<const PreTokenizer>;
PreTokenizerPointer read_pre_tokenizer_at(
    const JsonValue& section,
    Place place);

PreTokenizerPointer read_byte_level(const JsonValue& section, Place place) {
  ByteLevelPreTokenizer::Options options;
  options.add_prefix_space = section.at("add_prefix_space").as<bool>();
  section.at("trim_offsets").as<bool>(); // read by the post-processor
  if (const auto use_regex = section.find("use_regex")) {
    options.use_regex = use_regex->as<bool>();
  }
  options.keeps_bytes = place == Place::kLast;
  return std::make_unique<ByteLevelPreTokenizer>(options);
}

PreTokenizerPointer read_metaspace(const JsonValue& section, Place) {
  using Prepends = MetaspacePreTokenizer::Prepends;
  MetaspacePreTokenizer::Options options;
  options.replacement = read_character(section.at("replacement"));
  const auto scheme = section.find("prepend_scheme");
  if (scheme) {
    const std::string name = scheme->as<std::string>();
    if (name != "always" && name != "first" && name != "never") {
      scheme->fail("always, first or never");
    }
    options.prepends = name == "always"  ? Prepends::kAlways
                       : name == "first" ? Prepends::kFirst
                                         : Prepends::kNever;
  }
  // What files had before prepend_scheme.
  const auto add_prefix_space = section.find("add_prefix_space");
  if (add_prefix_space && !add_prefix_space->value().is_null() &&
      !add_prefix_space->as<bool>()) {
    if (scheme && options.prepends != Prepends::kNever) {
      scheme->fail("never, as add_prefix_space is false");
    }
    options.prepends = Prepends::kNever;
  }
  const auto split = section.find("split");
  if (split && !split->value().is_null()) {
    options.split = split->as<bool>();
  }
  return std::make_unique<MetaspacePreTokenizer>(options);
}

PreTokenizerPointer read_split(const JsonValue& section, Place) {
  return std::make_unique<SplitPreTokenizer>(
      read_pattern(section.at("pattern")),
      read_split_behavior(section.at("behavior")),
      section.at("invert").as<bool>());
}

PreTokenizerPointer read_pre_tokenizer_sequence(
    const JsonValue& section,
    Place place) {
  const std::vector<JsonValue> sections =
      section.at("pretokenizers").elements();
  std::vector<PreTokenizerPointer> parts;
  for (size_t i = 0; i < sections.size(); ++i) {
    parts.push_back(read_pre_tokenizer_at(
        sections[i], i + 1 < sections.size() ? Place::kBeforeOthers : place));
  }
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

template <typename Kind>
PreTokenizerPointer make_pre_tokenizer(const JsonValue&, Place) {
  return std::make_unique<Kind>();
}

struct PreTokenizerKind {
  const char* name;
  PreTokenizerPointer (*read)(const JsonValue& section, Place place);
};

constexpr PreTokenizerKind kPreTokenizers[] = {
    {"BertPreTokenizer", make_pre_tokenizer<BertPreTokenizer>},
    {"ByteLevel", read_byte_level},
    {"CharDelimiterSplit",
     [](const JsonValue& section, Place) -> PreTokenizerPointer {
       return std::make_unique<DelimiterPreTokenizer>(
           read_character(section.at("delimiter")));
     }},
    {"Digits",
     [](const JsonValue& section, Place) -> PreTokenizerPointer {
       return std::make_unique<DigitsPreTokenizer>(
           section.at("individual_digits").as<bool>()
               ? SplitBehavior::kIsolated
               : SplitBehavior::kContiguous);
     }},
    {"FixedLength",
     [](const JsonValue& section, Place) -> PreTokenizerPointer {
       const auto length = section.find("length");
       return std::make_unique<FixedLengthPreTokenizer>(
           length ? length->integer({.min = 1}) : 5);
     }},
    {"Metaspace", read_metaspace},
    {"Punctuation",
     [](const JsonValue& section, Place) -> PreTokenizerPointer {
       const auto behavior = section.find("behavior");
       return std::make_unique<PunctuationPreTokenizer>(
           behavior ? read_split_behavior(*behavior)
                    : SplitBehavior::kIsolated);
     }},
    {"Sequence", read_pre_tokenizer_sequence},
    {"Split", read_split},
    {"UnicodeScripts", make_pre_tokenizer<ScriptsPreTokenizer>},
    {"Whitespace", make_pre_tokenizer<WhitespacePreTokenizer>},
    {"WhitespaceSplit", make_pre_tokenizer<WhitespaceSplitPreTokenizer>}};

PreTokenizerPointer read_pre_tokenizer_at(
    const JsonValue& section,
    Place place) {
  const JsonValue type = section.at("type");
  const std::string name = type.as<std::string>();
  std::string names;
  for (const PreTokenizerKind& kind : kPreTokenizers) {
    if (name == kind.name) {
      return kind.read(section, place);
    }
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  type.fail("one of " + names);
}

} // namespace

std::unique_ptr<const PreTokenizer> read_pre_tokenizer(
    const runtime::JsonValue& section) {
  return read_pre_tokenizer_at(section, Place::kLast);
}

} // namespace tessera::text
