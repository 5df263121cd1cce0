// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/json_text.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tessera/runtime/core/error.h"

namespace tessera::runtime {

namespace {

using nlohmann::json;

// Far above the needs of every caller, and low enough for recursion over a
// value.
constexpr size_t kMaxDepth = 64;

constexpr size_t kMaxShown = 80;

std::string line_and_column(
    std::string_view text,
    size_t offset,
    int64_t first_line) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = first_line + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1; // npos + 1 is 0.
  return formatted("{}:{}", line, before.size() - line_start + 1);
}

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// The number of bytes of the UTF-8 character at the start of the text, 0 if
// there is none.
size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const size_t bytes = first < 0x80                    ? 1
                       : first >= 0xc2 && first < 0xe0 ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
  if (bytes > text.size()) {
    return 0;
  }
  for (size_t i = 1; i < bytes; ++i) {
    if (!continues_character(text[i])) {
      return 0;
    }
  }
  return bytes;
}

// The text with bytes that are not UTF-8 as "\xE9", which a terminal can show.
std::string with_escapes(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    if (bytes == 0) {
      result += formatted(
          "\\x{:02X}",
          static_cast<unsigned>(static_cast<unsigned char>(text.front())));
    }
    result += text.substr(0, bytes);
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return result;
}

// The library's message without its position of the error.
std::string reason(std::string_view label) {
  for (std::string_view mark : {"syntax error", "] "}) {
    const size_t at = label.find(mark);
    if (at != std::string_view::npos) {
      return with_escapes(label.substr(mark == "] " ? at + mark.size() : at));
    }
  }
  return with_escapes(label);
}

// Iterates over the text and exposes how far the parser has come.
class TrackedChar {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedChar(const char* at, const char*& furthest)
      : at_(at), furthest_(&furthest) {}

  reference operator*() const {
    return *at_;
  }

  TrackedChar& operator++() {
    *furthest_ = ++at_;
    return *this;
  }

  bool operator==(const TrackedChar& other) const {
    return at_ == other.at_;
  }

 private:
  const char* at_;
  const char** furthest_;
};

// Builds the value from the parser's events. Unlike the library's own builder
// it rejects duplicate keys in an object, which that silently accepts, and
// excessive nesting; and unlike a callback of json::parse(), whose builder goes
// through an object again for each object within it, it takes linear time.
class DocumentBuilder {
 public:
  DocumentBuilder(
      std::string_view text,
      std::string_view source,
      int64_t first_line)
      : text_(text),
        source_(source),
        first_line_(first_line),
        furthest_(text.data()) {}

  json parse() {
    json::sax_parse(at(0), at(text_.size()), this);
    return std::move(root_);
  }

  // Events of the parser, see nlohmann::json_sax.
  bool null() {
    add(nullptr);
    return true;
  }
  bool boolean(bool value) {
    add(value);
    return true;
  }
  bool number_integer(json::number_integer_t value) {
    add(value);
    return true;
  }
  bool number_unsigned(json::number_unsigned_t value) {
    add(value);
    return true;
  }
  bool number_float(json::number_float_t value, const std::string& /*text*/) {
    add(value);
    return true;
  }
  bool string(std::string& value) {
    add(std::move(value));
    return true;
  }
  bool binary(json::binary_t& value) {
    add(std::move(value));
    return true;
  }
  bool start_object(size_t /*elements*/) {
    open_.push_back(add(json::value_t::object));
    return true;
  }
  bool key(std::string& name) {
    check_depth();
    const auto [member, inserted] =
        open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    TESSERA_CHECK(
        inserted,
        "{}the key {} appears twice in the same object; remove one of the two",
        place(),
        show_json(name));
    member_ = &member->second;
    last_key_ = std::move(name);
    has_key_ = true;
    return true;
  }
  bool end_object() {
    open_.pop_back();
    return true;
  }
  bool start_array(size_t /*elements*/) {
    open_.push_back(add(json::value_t::array));
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool parse_error(
      size_t byte,
      const std::string& /*token*/,
      const json::exception& error) {
    if (dynamic_cast<const json::parse_error*>(&error) == nullptr) {
      TESSERA_FAIL(
          "{}this is not usable JSON: {}{}",
          place(),
          reason(error.what()),
          behind());
    }
    // `byte` counts the bytes read, including the offending one.
    TESSERA_FAIL(
        "{}:{}: this is not valid JSON: {}{}",
        source_,
        line_and_column(text_, byte > 0 ? byte - 1 : 0, first_line_),
        reason(error.what()),
        behind());
  }

 private:
  TrackedChar at(size_t offset) {
    return {text_.data() + offset, furthest_};
  }

  // Puts the value where the parser is.
  json* add(json value) {
    check_depth();
    json* target = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      target = &open_.back()->get_ref<json::array_t&>().emplace_back();
    } else if (!open_.empty()) {
      target = member_;
    }
    *target = std::move(value);
    return target;
  }

  void check_depth() const {
    TESSERA_CHECK(
        open_.size() <= kMaxDepth,
        "{}values are nested more than {} levels deep; flatten the structure",
        place(),
        kMaxDepth);
  }

  /// " (after the key "x")", or nothing before the first key.
  std::string behind() const {
    return has_key_ ? " (after the key " + show_json(last_key_) + ")" : "";
  }

  // Position of the last byte read, which ends the token in question.
  std::string place() const {
    const auto read = static_cast<size_t>(furthest_ - text_.data());
    return formatted(
        "{}:{}: ",
        source_,
        line_and_column(text_, read > 0 ? read - 1 : 0, first_line_));
  }

  std::string_view text_;
  std::string_view source_;
  int64_t first_line_;
  const char* furthest_;
  json root_;
  // Arrays and objects that are not closed. Those within an array stay where
  // they are: it grows only when they are closed.
  std::vector<json*> open_;
  json* member_ = nullptr; // of the innermost object, which awaits its value
  std::string last_key_;
  bool has_key_ = false;
};

} // namespace

json parse_json(
    std::string_view text,
    std::string_view source,
    int64_t first_line) {
  // The parser would take it for the end of the text and ignore the rest.
  const size_t nul = text.find('\0');
  TESSERA_CHECK(
      nul == std::string_view::npos,
      "{}:{}: this is not valid JSON: it contains a zero byte",
      source,
      line_and_column(text, nul, first_line));
  return DocumentBuilder(text, source, first_line).parse();
}

std::string show_json(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxShown) {
    size_t end = kMaxShown;
    while (end > 0 && continues_character(text[end])) {
      --end;
    }
    text.resize(end);
    text += "...";
  }
  return text;
}

} // namespace tessera::runtime
