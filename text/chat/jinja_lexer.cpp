// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/jinja_lexer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_text.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace tessera::text::jinja {

namespace {

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_name_character(char c) {
  return is_name_start(c) || is_ascii_digit(c);
}

/// The string literal, whose quotes are removed already, without its escapes.
class StringReader {
 public:
  StringReader(std::string_view source, std::size_t begin, std::size_t end)
      : source_(source), at_(begin), end_(end) {}

  std::string read() {
    std::string result;
    while (at_ < end_) {
      if (source_[at_] != '\\') {
        result += source_[at_++];
      } else {
        read_escape(result);
      }
    }
    return result;
  }

 private:
  static constexpr std::string_view kSimple = "\\'\"abfnrtv";
  static constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";

  void read_escape(std::string& result) {
    const std::size_t begin = at_++;
    const char c = source_[at_];
    const std::size_t simple = kSimple.find(c);
    if (simple != std::string_view::npos) {
      result += kMeaning[simple];
      ++at_;
    } else if (c == '\n') {
      ++at_;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      ++at_;
      append(result, digits(begin, c == 'x' ? 2 : c == 'u' ? 4 : 8), begin);
    } else if (c >= '0' && c <= '7') {
      char32_t code = 0;
      for (int i = 0;
           i < 3 && at_ < end_ && source_[at_] >= '0' && source_[at_] <= '7';
           ++i) {
        code = code * 8 + static_cast<char32_t>(source_[at_++] - '0');
      }
      append(result, code, begin);
    } else {
      if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
        throw SyntaxFault{
            begin,
            "this escape in a string is not implemented; write the character itself"};
      }
      result += '\\';
    }
  }

  char32_t digits(std::size_t begin, int count) {
    char32_t code = 0;
    for (int i = 0; i < count; ++i) {
      const char c = at_ < end_ ? source_[at_++] : ' ';
      const bool is_letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      if (!is_letter && !is_ascii_digit(c)) {
        throw SyntaxFault{
            begin, "a string has an escape with too few hexadecimal digits"};
      }
      code = code << 4 |
             static_cast<char32_t>(is_letter ? (c & 0x1f) + 9 : c - '0');
    }
    return code;
  }

  static void append(std::string& result, char32_t code, std::size_t begin) {
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      throw SyntaxFault{
          begin,
          "a string has an escape that is not a character; write the character itself"};
    }
    append_utf8(result, code);
  }

  std::string_view source_;
  std::size_t at_;
  std::size_t end_;
};

class TemplateLexer {
 public:
  explicit TemplateLexer(std::string_view source) : source_(source) {}

  std::vector<Token> read() {
    while (at_ < source_.size()) {
      read_data();
    }
    add(TokenKind::kEnd, at_, {});
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view text) const {
    return source_.substr(at_).starts_with(text);
  }

  void add(TokenKind kind, std::size_t offset, std::string text) {
    tokens_.push_back({kind, offset, std::move(text)});
  }

  void skip_spaces() {
    while (at_ < source_.size() && is_space(code_point_at(source_, at_))) {
      at_ += utf8_length(source_, at_);
    }
  }

  /// The next "{{", "{%" or "{#", or the end.
  std::size_t next_tag() const {
    std::size_t found = at_;
    while ((found = source_.find('{', found)) != std::string_view::npos) {
      const char next = found + 1 < source_.size() ? source_[found + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') {
        return found;
      }
      ++found;
    }
    return source_.size();
  }

  /// The text before a tag, from which the tag may remove white space.
  std::string_view stripped(std::string_view text, char sign, bool is_variable)
      const {
    if (sign == '-') {
      return strip(text, StripSide::kRight);
    }
    if (sign == '+' || is_variable) {
      return text;
    }
    const std::size_t line = text.rfind('\n') + 1; // npos + 1 is 0
    const bool is_at_line_start = line > 0 || starts_line_;
    return is_at_line_start && strip(text.substr(line)).empty()
               ? text.substr(0, line)
               : text;
  }

  void read_data() {
    const std::size_t begin = at_;
    const std::size_t tag = next_tag();
    std::string_view text = source_.substr(begin, tag - begin);
    if (tag == source_.size()) {
      add(TokenKind::kData, begin, std::string(text));
      at_ = tag;
      return;
    }
    const char type = source_[tag + 1];
    at_ = tag + 2;
    char sign = at_ < source_.size() ? source_[at_] : ' ';
    if (sign == '-' || sign == '+') {
      ++at_;
    } else {
      sign = ' ';
    }
    text = stripped(text, sign, type == '{');
    if (!text.empty()) {
      add(TokenKind::kData, begin, std::string(text));
    }
    if (type == '#') {
      read_comment(tag);
    } else if (type == '{') {
      add(TokenKind::kVariableBegin, tag, "{{");
      read_expression(tag, TokenKind::kVariableEnd, "}}");
    } else if (!read_raw(tag)) {
      add(TokenKind::kBlockBegin, tag, "{%");
      read_expression(tag, TokenKind::kBlockEnd, "%}");
    }
    starts_line_ = source_[at_ - 1] == '\n';
  }

  /// After the sign and the end of a tag.
  void trim_after(char sign, bool trims_line_end) {
    if (sign == '-') {
      skip_spaces();
    } else if (sign != '+' && trims_line_end && starts("\n")) {
      ++at_;
    }
  }

  void read_comment(std::size_t tag) {
    std::size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) {
      throw SyntaxFault{tag, "a comment has no end; close it with #}"};
    }
    const char before = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    trim_after(before, true);
  }

  /// Whether the source goes on with a word between spaces, which it skips.
  bool skip_word(std::string_view word) {
    const std::size_t begin = at_;
    skip_spaces();
    if (!starts(word)) {
      at_ = begin;
      return false;
    }
    at_ += word.size();
    skip_spaces();
    return true;
  }

  /// The whole of {% raw %}...{% endraw %}, after "{%" and its sign.
  bool read_raw(std::size_t tag) {
    const std::size_t begin = at_;
    if (!skip_word("raw") || !(starts("%}") || starts("-%}"))) {
      at_ = begin;
      return false;
    }
    const char sign = source_[at_];
    at_ += sign == '-' ? 3 : 2;
    trim_after(sign, false);
    const std::size_t text_begin = at_;
    std::size_t found = at_;
    while ((found = source_.find("{%", found)) != std::string_view::npos) {
      at_ = found + 2;
      char before = at_ < source_.size() ? source_[at_] : ' ';
      at_ += before == '-' || before == '+' ? 1 : 0;
      if (skip_word("endraw") &&
          (starts("%}") || starts("-%}") || starts("+%}"))) {
        before = before == '-' || before == '+' ? before : ' ';
        starts_line_ = source_[text_begin - 1] == '\n';
        const std::string_view text = stripped(
            source_.substr(text_begin, found - text_begin), before, false);
        add(TokenKind::kData, text_begin, std::string(text));
        const char after = source_[at_];
        at_ += after == '%' ? 2 : 3;
        trim_after(after, true);
        return true;
      }
      found += 2;
    }
    throw SyntaxFault{tag, "{% raw %} has no end; close it with {% endraw %}"};
  }

  void read_expression(
      std::size_t tag,
      TokenKind end_kind,
      std::string_view end_text) {
    const bool is_block = end_kind == TokenKind::kBlockEnd;
    std::vector<char> closers;
    while (true) {
      skip_spaces();
      if (at_ == source_.size()) {
        throw SyntaxFault{
            tag, formatted("a tag has no end; close it with {}", end_text)};
      }
      if (closers.empty()) {
        const char sign = source_[at_];
        const bool has_sign = (sign == '-' || (sign == '+' && is_block)) &&
                              source_.substr(at_ + 1).starts_with(end_text);
        if (has_sign || starts(end_text)) {
          add(end_kind, at_, std::string(end_text));
          at_ += end_text.size() + (has_sign ? 1 : 0);
          trim_after(has_sign ? sign : ' ', is_block);
          return;
        }
      }
      read_token(closers);
    }
  }

  void read_token(std::vector<char>& closers) {
    const std::size_t begin = at_;
    const char c = source_[at_];
    if (is_ascii_digit(c)) {
      read_number();
    } else if (is_name_start(c)) {
      while (at_ < source_.size() && is_name_character(source_[at_])) {
        ++at_;
      }
      add(TokenKind::kName,
          begin,
          std::string(source_.substr(begin, at_ - begin)));
    } else if (c == '\'' || c == '"') {
      read_string();
    } else {
      read_operator(closers);
    }
  }

  /// Digits with single underscores between them.
  std::string read_digits() {
    std::string digits;
    while (at_ < source_.size()) {
      const bool is_separator = source_[at_] == '_' && !digits.empty() &&
                                at_ + 1 < source_.size() &&
                                is_ascii_digit(source_[at_ + 1]);
      if (is_ascii_digit(source_[at_])) {
        digits += source_[at_];
      } else if (!is_separator) {
        break;
      }
      ++at_;
    }
    return digits;
  }

  void read_number() {
    const std::size_t begin = at_;
    const bool follows_dot = begin > 0 && source_[begin - 1] == '.';
    std::string text = read_digits();
    TokenKind kind = TokenKind::kInteger;
    const auto digit_at = [&](std::size_t i) {
      return i < source_.size() && is_ascii_digit(source_[i]);
    };
    if (!follows_dot && starts(".") && digit_at(at_ + 1)) {
      ++at_;
      text += "." + read_digits();
      kind = TokenKind::kFloat;
    }
    if (!follows_dot && (starts("e") || starts("E"))) {
      const char sign = at_ + 1 < source_.size() ? source_[at_ + 1] : ' ';
      const std::size_t length = sign == '+' || sign == '-' ? 2 : 1;
      if (digit_at(at_ + length)) {
        text += source_.substr(at_, length);
        at_ += length;
        text += read_digits();
        kind = TokenKind::kFloat;
      }
    }
    const bool has_leading_zero =
        kind == TokenKind::kInteger && text.size() > 1 && text.front() == '0' &&
        text.find_first_not_of('0') != std::string::npos;
    if (has_leading_zero ||
        (at_ < source_.size() && is_name_character(source_[at_]))) {
      throw SyntaxFault{
          begin, "a number is not decimal; write it with decimal digits"};
    }
    add(kind, begin, std::move(text));
  }

  void read_string() {
    const std::size_t begin = at_;
    const char quote = source_[at_++];
    const std::size_t content = at_;
    while (at_ < source_.size() && source_[at_] != quote) {
      at_ += source_[at_] == '\\' ? 2 : 1;
    }
    if (at_ >= source_.size()) {
      throw SyntaxFault{begin, "a string has no end; close its quotes"};
    }
    add(TokenKind::kString, begin, StringReader(source_, content, at_).read());
    ++at_;
  }

  void read_operator(std::vector<char>& closers) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* const found = std::find_if(
        kOperators.begin(), kOperators.end(), [&](std::string_view text) {
          return starts(text);
        });
    if (found == kOperators.end()) {
      throw SyntaxFault{
          at_,
          formatted(
              "the character {} has no meaning in a tag; remove it",
              source_.substr(at_, utf8_length(source_, at_)))};
    }
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      closers.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (closers.empty() || closers.back() != c) {
        throw SyntaxFault{
            at_, formatted("'{}' closes nothing that is open; remove it", c)};
      }
      closers.pop_back();
    }
    add(TokenKind::kOperator, at_, std::string(*found));
    at_ += found->size();
  }

  std::string_view source_;
  std::size_t at_ = 0;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

} // namespace

std::string normalized_source(std::string_view text) {
  std::string source;
  source.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_pair =
        text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    source += text[i] == '\r' ? '\n' : text[i];
    i += is_pair ? 1 : 0;
  }
  if (source.ends_with('\n')) {
    source.pop_back();
  }
  return source;
}

std::vector<Token> split_template(std::string_view source) {
  return TemplateLexer(source).read();
}

} // namespace tessera::text::jinja
