// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/regex_syntax.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/recent_characters.h"
#include "tessera/text/tokenizer/utf8.h"

#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::text {

namespace {

constexpr const char* kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// Oniguruma counts the fractions and powers of Latin-1 among the characters of
// words in \w, but not in [\w].
constexpr const char* kFractions = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr const char* kHexDigit = "0-9a-fA-F";

/// Characters of one place of a text.
struct CharacterSet {
  /// Of a class, what is between its brackets; empty: it is no such class.
  std::string items;
  /// Matches one of them.
  std::string pattern;
};

CharacterSet set_of(std::string items) {
  std::string pattern = "[" + items + "]";
  return {std::move(items), std::move(pattern)};
}

CharacterSet all_but(const CharacterSet& set) {
  return {
      "",
      set.items.empty() ? "(?:(?!" + set.pattern + ")(?s:.))"
                        : "[^" + set.items + "]"};
}

CharacterSet either(const CharacterSet& a, const CharacterSet& b) {
  if (!a.items.empty() && !b.items.empty()) {
    return set_of(a.items + b.items);
  }
  return {"", "(?:" + a.pattern + "|" + b.pattern + ")"};
}

CharacterSet both(const CharacterSet& a, const CharacterSet& b) {
  return {"", "(?:(?=" + a.pattern + ")" + b.pattern + ")"};
}

std::string literal(char32_t c) {
  const bool is_alphanumeric = (c >= '0' && c <= '9') ||
                               (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  if (is_alphanumeric) {
    return {static_cast<char>(c)};
  }
  if (c > ' ' && c < 0x7f) {
    return {'\\', static_cast<char>(c)};
  }
  return formatted("\\x{{{:x}}}", static_cast<uint32_t>(c));
}

std::string lower_ascii(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  }
  return result;
}

/// Names of properties are compared without these and without case.
std::string bare_name(std::string_view name) {
  std::string result = lower_ascii(name);
  std::erase_if(
      result, [](char c) { return c == ' ' || c == '_' || c == '-'; });
  return result;
}

/// Of a general category or script; nothing: the name is neither.
std::optional<std::string> pcre2_property(const std::string& name) {
  const int32_t mask =
      u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, name.c_str());
  if (mask != UCHAR_INVALID_CODE) {
    const char* const short_name = u_getPropertyValueName(
        UCHAR_GENERAL_CATEGORY_MASK, mask, U_SHORT_PROPERTY_NAME);
    return std::string(short_name) == "LC" ? "L&" : short_name;
  }
  const int32_t script = u_getPropertyValueEnum(UCHAR_SCRIPT, name.c_str());
  if (script != UCHAR_INVALID_CODE) {
    return "sc:" + std::string(u_getPropertyValueName(
                       UCHAR_SCRIPT, script, U_LONG_PROPERTY_NAME));
  }
  static constexpr const char* kBinary[] = {
      "Alphabetic",
      "Case_Ignorable",
      "Cased",
      "Dash",
      "Default_Ignorable_Code_Point",
      "Diacritic",
      "Emoji",
      "Emoji_Component",
      "Emoji_Modifier",
      "Emoji_Modifier_Base",
      "Emoji_Presentation",
      "Extended_Pictographic",
      "Extender",
      "Grapheme_Base",
      "Grapheme_Extend",
      "Hex_Digit",
      "ID_Continue",
      "ID_Start",
      "Ideographic",
      "Join_Control",
      "Lowercase",
      "Math",
      "Quotation_Mark",
      "Radical",
      "Regional_Indicator",
      "Sentence_Terminal",
      "Terminal_Punctuation",
      "Unified_Ideograph",
      "Uppercase",
      "Variation_Selector",
      "White_Space",
      "XID_Continue",
      "XID_Start"};
  for (const char* const known : kBinary) {
    if (bare_name(known) == name) {
      return known;
    }
  }
  return std::nullopt;
}

class Translator {
 public:
  Translator(std::string_view pattern, UnicodeTables tables)
      : pattern_(pattern), tables_(tables) {}

  Pcre2Pattern translate() {
    std::string result = alternatives();
    if (at_ < pattern_.size()) {
      refuse("an unmatched )");
    }
    if (has_named_groups_ && has_numbers_) {
      refuse("numbers of groups beside names of groups");
    }
    return {std::move(result), has_named_groups_};
  }

 private:
  struct Options {
    bool ignores_case = false;
    bool is_extended = false;
    bool is_dot_all = false;
  };

  [[noreturn]] void refuse(std::string_view label) const {
    TESSERA_FAIL(
        "the regular expression {} has {} at byte {}, which is wrong or not supported; write it otherwise",
        pattern_,
        label,
        at_);
  }

  bool at_end() const {
    return at_ >= pattern_.size();
  }
  bool next_is(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  bool accept(std::string_view text) {
    if (!next_is(text)) {
      return false;
    }
    at_ += text.size();
    return true;
  }
  char32_t take() {
    if (at_end()) {
      refuse("an end that is too early");
    }
    const char32_t c = code_point_at(pattern_, at_);
    at_ += utf8_length(pattern_, at_);
    return c;
  }

  // Up to the end of the group or of the pattern.
  std::string alternatives() {
    if (++depth_ > kMostDepth) {
      refuse("too many groups within each other");
    }
    const Options before = options_;
    std::string result;
    last_literal_ = 0;
    while (!at_end() && !next_is(")")) {
      if (accept("|")) {
        result += '|';
        last_literal_ = 0;
      } else {
        result += quantified();
      }
    }
    options_ = before;
    --depth_;
    return result;
  }

  // One unit with its quantifiers.
  std::string quantified() {
    is_quantifiable_ = true;
    std::string unit = atom();
    while (!at_end()) {
      const bool was_literal = last_literal_ != 0;
      const std::optional<std::string> times = quantifier();
      if (!times) {
        break;
      }
      last_literal_ = was_literal ? 0 : last_literal_;
      if (!is_quantifiable_) {
        refuse("a quantifier of nothing that can be repeated");
      }
      unit += *times;
      if (!at_end() && std::string_view("*+?{").find(pattern_[at_]) !=
                           std::string_view::npos) {
        unit = "(?:" + unit + ")"; // a quantifier of what has one
      }
    }
    return unit;
  }

  std::optional<std::string> quantifier() {
    for (const char* const sign : {"*", "+", "?"}) {
      if (accept(sign)) {
        if (accept("+")) {
          return std::string(sign) + "+";
        }
        return accept("?") ? std::string(sign) + "?" : sign;
      }
    }
    return interval();
  }

  // {n}, {n,}, {,m}, {n,m}; anything else in braces is text.
  std::optional<std::string> interval() {
    const size_t begin = at_;
    if (!accept("{")) {
      return std::nullopt;
    }
    const std::optional<int> least = number();
    const bool has_comma = accept(",");
    const std::optional<int> most = has_comma ? number() : least;
    if (!accept("}") || (!least && !most)) {
      at_ = begin;
      return std::nullopt;
    }
    if (least && most && *least > *most) {
      refuse("an interval that ends before it begins");
    }
    std::string result = formatted("{{{}", least.value_or(0));
    if (has_comma) {
      result += ',';
      result += most ? std::to_string(*most) : "";
    }
    result += '}';
    // A plus after it repeats it, and so does a question mark after {n}.
    if (has_comma && accept("?")) {
      result += '?';
    }
    return result;
  }

  std::optional<int> number() {
    const size_t begin = at_;
    int value = 0;
    while (!at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = value * 10 + (pattern_[at_++] - '0');
      if (value > 65535) {
        refuse("a number above 65535");
      }
    }
    return at_ == begin ? std::nullopt : std::optional(value);
  }

  std::string atom() {
    const char32_t previous = std::exchange(last_literal_, 0);
    if (accept("(")) {
      return group();
    }
    if (accept("[")) {
      return character_class().pattern;
    }
    if (accept("\\")) {
      return escape(previous);
    }
    if (accept(".")) {
      return options_.is_dot_all ? "(?s:.)" : ".";
    }
    if (next_is("^") || next_is("$")) {
      is_quantifiable_ = false;
      return {pattern_[at_++]};
    }
    if (next_is("*") || next_is("+") || next_is("?")) {
      refuse("a quantifier of nothing");
    }
    if (options_.is_extended) {
      if (accept("#")) {
        while (!at_end() && take() != '\n') {
        }
        is_quantifiable_ = false;
        return "";
      }
      if (std::string_view(" \t\n\r\f\v").find(pattern_[at_]) !=
          std::string_view::npos) {
        ++at_;
        is_quantifiable_ = false;
        return "";
      }
    }
    return text(take(), previous);
  }

  // A character of the text; `previous` is the one before it, 0 if none is.
  std::string text(char32_t c, char32_t previous) {
    if (options_.ignores_case) {
      check_case(previous, c);
    }
    last_literal_ = c;
    return literal(c);
  }

  // Without case Oniguruma lets "ss" match U+00DF and the like; PCRE2 compares
  // characters one by one.
  void check_case(char32_t previous, char32_t c) {
    const auto first = lower_case(previous);
    const auto second = lower_case(c);
    constexpr std::pair<char32_t, char32_t> kPairs[] = {
        {'s', 's'}, {'s', 't'}, {'f', 'f'}, {'f', 'i'}, {'f', 'l'}};
    const bool is_ligature = std::any_of(
        std::begin(kPairs), std::end(kPairs), [&](const auto& pair) {
          return pair.first == first && pair.second == second;
        });
    icu::UnicodeString folded(static_cast<UChar32>(c));
    folded.foldCase();
    if (is_ligature || folded.countChar32() != 1) {
      refuse("letters that have a ligature, in a part that ignores case,");
    }
  }

  // Past the "(".
  std::string group() {
    if (accept("?#")) {
      while (take() != ')') {
      }
      is_quantifiable_ = false;
      return "";
    }
    for (const char* const kind : {"?=", "?!", "?<=", "?<!"}) {
      if (accept(kind)) {
        is_quantifiable_ = false;
        return closed("(" + std::string(kind));
      }
    }
    for (const char* const kind : {"?:", "?>"}) {
      if (accept(kind)) {
        return closed("(" + std::string(kind));
      }
    }
    if (accept("?<") || accept("?'")) {
      has_named_groups_ = true;
      const char32_t end = pattern_[at_ - 1] == '<' ? '>' : '\'';
      return closed("(?<" + name(end) + ">");
    }
    if (accept("?")) {
      return options();
    }
    return closed("(");
  }

  std::string closed(std::string opening) {
    const bool is_quantifiable = is_quantifiable_;
    opening += alternatives();
    if (!accept(")")) {
      refuse("an unmatched (");
    }
    last_literal_ = 0;
    is_quantifiable_ = is_quantifiable;
    return opening + ")";
  }

  std::string name(char32_t end) {
    std::string result;
    for (char32_t c = take(); c != end; c = take()) {
      const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                            c == '_' ||
                            (c >= '0' && c <= '9' && !result.empty());
      if (!is_plain || result.size() == 32) {
        refuse(
            "a group's name that is not of at most 32 letters, digits and _");
      }
      result += static_cast<char>(c);
    }
    if (result.empty()) {
      refuse("a group's name that is empty");
    }
    return result;
  }

  // Past the "(?": i, m, x up to a ":" or up to the end of the group around it.
  std::string options() {
    const Options before = options_;
    bool is_on = true;
    while (true) {
      const char32_t c = take();
      if (c == '-') {
        is_on = false;
      } else if (c == 'i') {
        options_.ignores_case = is_on;
      } else if (c == 'm') {
        options_.is_dot_all = is_on;
      } else if (c == 'x') {
        options_.is_extended = is_on;
      } else if (c == ':' || c == ')') {
        std::string opening = options_.ignores_case ? "(?i:" : "(?-i:";
        std::string result;
        if (c == ':') {
          result = closed(std::move(opening));
        } else {
          result = opening + alternatives() + ")";
          is_quantifiable_ = false;
        }
        options_ = before;
        return result;
      } else {
        --at_;
        refuse("a kind of group or an option that is unknown");
      }
    }
  }

  // Past a backslash, outside of classes.
  std::string escape(char32_t previous) {
    if (at_end()) {
      refuse("a backslash at the end");
    }
    if (const auto set = set_escape()) {
      return set->pattern;
    }
    const char c = pattern_[at_];
    const auto anchor = [&](std::string written) {
      ++at_;
      is_quantifiable_ = false;
      return written;
    };
    const std::string word = word_characters().pattern;
    switch (c) {
      case 'b':
        return anchor(formatted("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word));
      case 'B':
        return anchor(formatted("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word));
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
        return anchor({'\\', c});
      case 'R':
        ++at_;
        return "\\R";
      case 'N':
        ++at_;
        return "(?-s:.)";
      case 'O':
        ++at_;
        return "(?s:.)";
      case 'k': {
        ++at_;
        if (!accept("<")) {
          refuse("\\k without <name>");
        }
        return "\\k<" + name('>') + ">";
      }
      default:
        break;
    }
    const auto is_octal_digit = [&](size_t i) {
      return i < pattern_.size() && pattern_[i] >= '0' && pattern_[i] <= '7';
    };
    if (c >= '1' && c <= '3' && is_octal_digit(at_ + 1) &&
        is_octal_digit(at_ + 2)) {
      return text(digits(8, 3, 3), previous);
    }
    if (c >= '1' && c <= '9') {
      ++at_;
      if (!at_end() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
        refuse("a group's number above 9");
      }
      has_numbers_ = true;
      return formatted("(?:\\{})", c);
    }
    return text(character_escape(), previous);
  }

  // Past a backslash: sets of characters, in classes and outside. Stays where
  // it is if this is none.
  std::optional<CharacterSet> set_escape() {
    const char c = pattern_[at_];
    switch (c) {
      case 's':
        ++at_;
        return set_of(kSpace);
      case 'S':
        ++at_;
        return set_of(kNoSpace);
      case 'd':
        ++at_;
        return with_properties({"Nd"});
      case 'D':
        ++at_;
        return all_but(with_properties({"Nd"}));
      case 'h':
        ++at_;
        return set_of(kHexDigit);
      case 'H':
        ++at_;
        return all_but(set_of(kHexDigit));
      case 'w':
        ++at_;
        return word_characters();
      case 'W':
        ++at_;
        return all_but(word_characters());
      case 'p':
      case 'P': {
        ++at_;
        if (!accept("{")) {
          refuse("\\p without {name}");
        }
        const bool is_inverted = accept("^") != (c == 'P');
        return property(is_inverted);
      }
      default:
        return std::nullopt;
    }
  }

  CharacterSet property(bool is_inverted) {
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) {
      refuse("\\p{ without }");
    }
    const std::string name = bare_name(pattern_.substr(at_, end - at_));
    if (options_.ignores_case &&
        (name == "lu" || name == "ll" || name == "lt" || name == "upper" ||
         name == "lower" || name == "uppercase" || name == "lowercase" ||
         name == "uppercaseletter" || name == "lowercaseletter" ||
         name == "titlecaseletter")) {
      refuse("letters of one case, in a part that ignores case,");
    }
    if (name == "any") {
      at_ = end + 1;
      const CharacterSet any = set_of(R"(\x{0}-\x{10ffff})");
      return is_inverted ? all_but(any) : any;
    }
    if (const auto set = posix_class(name)) {
      at_ = end + 1;
      return is_inverted ? all_but(*set) : *set;
    }
    const auto known = pcre2_property(name == "punct" ? "p" : name);
    if (!known) {
      refuse("a property of characters that is unknown");
    }
    at_ = end + 1;
    const CharacterSet set = with_properties({*known});
    const std::string inverted = "\\P{" + *known + "}";
    return !is_inverted                             ? set
           : set.items.size() < inverted.size() + 1 ? set_of(inverted)
                                                    : all_but(set);
  }

  // Characters with one of the properties of PCRE2.
  CharacterSet with_properties(
      const std::vector<std::string>& properties) const {
    std::string items;
    for (const std::string& property : properties) {
      items += "\\p{" + property + "}";
      if (tables_ == UnicodeTables::kOfUnicode16) {
        items += recent_items(property);
      }
    }
    return set_of(std::move(items));
  }

  CharacterSet word_characters() const {
    const CharacterSet usual = with_properties({"Alphabetic", "M", "Nd", "Pc"});
    return classes_ > 0 ? usual : either(usual, set_of(kFractions));
  }

  // Classes that are named in brackets, as [[:alpha:]]; most of the names are
  // those of properties too.
  std::optional<CharacterSet> posix_class(std::string_view name) const {
    static const std::vector<std::string> kVisible = {
        "L", "M", "N", "P", "S", "Cf", "Co"};
    const auto is = [&](std::string_view known) { return name == known; };
    return is("alnum")   ? with_properties({"Alphabetic", "Nd"})
           : is("alpha") ? with_properties({"Alphabetic"})
           : is("ascii") ? set_of(R"(\x{0}-\x{7f})")
           : is("blank") ? set_of(R"(\x{9}\p{Zs})")
           : is("cntrl") ? set_of(R"(\p{Cc})")
           : is("graph") ? with_properties(kVisible)
           : is("print")
               ? either(with_properties(kVisible), set_of(R"(\p{Zs})"))
           : is("digit")  ? with_properties({"Nd"})
           : is("lower")  ? with_properties({"Lowercase"})
           : is("upper")  ? with_properties({"Uppercase"})
           : is("space")  ? set_of(kSpace)
           : is("word")   ? word_characters()
           : is("xdigit") ? std::optional(set_of(kHexDigit))
                          : std::nullopt;
  }

  // Past a backslash: one character.
  char32_t character_escape() {
    const size_t begin = at_;
    const char32_t c = take();
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1b;
      case 'x':
        if (accept("{")) {
          const char32_t value = digits(16, 1, 8);
          if (!accept("}")) {
            refuse("\\x{ without }");
          }
          return valid(value);
        }
        return hex_byte();
      case 'u':
        return valid(digits(16, 4, 4));
      case '0':
        return digits(8, 0, 2);
      case 'c':
      case 'C':
      case 'M':
      case 'g':
      case 'k':
      case 'K':
      case 'y':
      case 'Y':
      case 'R':
      case 'X':
      case 'N':
      case 'O':
        at_ = begin;
        refuse("the escape \\" + std::string(1, static_cast<char>(c)));
      default:
        return c; // itself, even letters
    }
  }

  char32_t hex_byte() {
    const char32_t value = digits(16, 1, 2);
    if (value >= 0x80) {
      refuse("a byte that is part of a character");
    }
    return value;
  }

  char32_t valid(char32_t c) const {
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
      refuse("the number of no character");
    }
    return c;
  }

  char32_t digits(unsigned base, int least, int most) {
    char32_t value = 0;
    int count = 0;
    for (; count < most && !at_end(); ++count, ++at_) {
      const char c = pattern_[at_];
      const unsigned digit = c >= '0' && c <= '9'   ? c - '0'
                             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                    : base;
      if (digit >= base) {
        break;
      }
      value = value * base + digit;
    }
    if (count < least) {
      refuse("a number with too few digits");
    }
    return value;
  }

  // Past the "[".
  CharacterSet character_class() {
    if (++depth_ > kMostDepth) {
      refuse("too many classes within each other");
    }
    ++classes_;
    const bool is_inverted = accept("^");
    if (is_inverted && classes_ > 1 && options_.ignores_case) {
      // Oniguruma adds other cases to the outer class, PCRE2 to the inner one.
      refuse("an inverted class in another one, in a part that ignores case,");
    }
    std::optional<CharacterSet> all; // of parts before a "&&"
    std::optional<CharacterSet> part;
    const auto add = [&](const CharacterSet& set) {
      part = part ? either(*part, set) : set;
    };
    const auto end_part = [&] {
      if (!part) {
        refuse("an empty class of characters");
      }
      all = all ? both(*all, *part) : *part;
      part.reset();
    };
    // At the beginning it is a character if another one ends the class.
    if (next_is("]") && pattern_.find(']', at_ + 1) != std::string_view::npos) {
      ++at_;
      add(set_of(R"(\])"));
    }
    while (!accept("]")) {
      if (accept("&&")) {
        end_part();
      } else if (accept("[:")) {
        add(named_class());
      } else if (accept("[")) {
        add(character_class());
      } else {
        add(class_item());
      }
    }
    end_part();
    --classes_;
    --depth_;
    return is_inverted ? all_but(*all) : *all;
  }

  // Past a "[:".
  CharacterSet named_class() {
    const bool is_inverted = accept("^");
    const size_t end = pattern_.find(":]", at_);
    if (end == std::string_view::npos) {
      refuse("[: without :]");
    }
    const std::string name(pattern_.substr(at_, end - at_));
    std::optional<CharacterSet> set = posix_class(name);
    if (name == "punct") {
      set = with_properties({"P", "S"});
    }
    if (!set ||
        (options_.ignores_case && (name == "lower" || name == "upper"))) {
      refuse("a class that is not known by this name");
    }
    at_ = end + 2;
    return is_inverted ? all_but(*set) : *set;
  }

  // A character, a range or an escape.
  CharacterSet class_item() {
    const size_t begin = at_;
    if (next_is("\\") && at_ + 1 < pattern_.size()) {
      ++at_;
      if (const auto set = set_escape()) {
        if (next_is("-") && !next_is("-]")) {
          refuse("a range from a set of characters");
        }
        return *set;
      }
      at_ = begin;
    }
    const char32_t first = class_character();
    if (!next_is("-") || next_is("-]")) {
      return set_of(literal(first));
    }
    ++at_;
    if (next_is("[") || next_is("&&") ||
        (first == '-' && begin > 0 && pattern_[begin - 1] != '[' &&
         pattern_[begin - 1] != '^')) {
      refuse("a range whose end is not clear");
    }
    const char32_t last = class_character();
    if (last < first) {
      refuse("a range that ends before it begins");
    }
    return set_of(literal(first) + "-" + literal(last));
  }

  char32_t class_character() {
    if (!accept("\\")) {
      return take();
    }
    if (accept("b")) {
      return '\b';
    }
    const size_t begin = at_;
    if (at_end() || std::string_view("sSdDhHwWpP").find(pattern_[at_]) !=
                        std::string_view::npos) {
      refuse("a range to a set of characters");
    }
    if (pattern_[at_] >= '1' && pattern_[at_] <= '7') {
      return digits(8, 1, 3);
    }
    at_ = begin;
    return character_escape();
  }

  static constexpr int kMostDepth = 100;

  std::string_view pattern_;
  UnicodeTables tables_;
  size_t at_ = 0;
  int depth_ = 0; ///< of groups and classes
  int classes_ = 0; ///< around what is read
  Options options_;
  bool has_named_groups_ = false;
  bool has_numbers_ = false;
  bool is_quantifiable_ = true; ///< what was read last
  char32_t last_literal_ = 0; ///< the character before, if it is one
};

} // namespace

Pcre2Pattern pcre2_syntax(std::string_view pattern, UnicodeTables tables) {
  return Translator(pattern, tables).translate();
}

} // namespace tessera::text
