// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "tessera/runtime/core/error.h"

namespace tessera {

namespace {

using nlohmann::json;

// Every reader of ours stays far below; recursion over a value stays safe.
constexpr int kMaxDepth = 64;

constexpr size_t kMaxShown = 80;

std::string line_and_column(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1; // npos + 1 is 0.
  return detail::concat(line, ":", before.size() - line_start + 1);
}

// The library's message without its own idea of where the error is.
std::string reason(std::string_view what) {
  for (std::string_view mark : {"syntax error", "] "}) {
    const size_t at = what.find(mark);
    if (at != std::string_view::npos) {
      return std::string(what.substr(mark == "] " ? at + mark.size() : at));
    }
  }
  return std::string(what);
}

// Watches the parser: refuses a key that its object already holds, which the
// library would resolve silently, and nesting without end.
class Watcher {
 public:
  explicit Watcher(std::string_view source) : source_(source) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    TESSERA_CHECK(
        depth <= kMaxDepth,
        source_,
        ": values are nested more than ",
        kMaxDepth,
        " deep; make the structure flatter");
    if (event == json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      TESSERA_CHECK(
          keys_.back().insert(key).second,
          source_,
          ": the key ",
          show_json(parsed),
          " stands twice in the same object; remove one of the two");
    }
    return true;
  }

 private:
  std::string source_;
  std::vector<std::set<std::string>> keys_; // One set per open object.
};

} // namespace

json parse_json(std::string_view text, std::string_view source) {
  // The parser would take it for the end and ignore what follows.
  const size_t nul = text.find('\0');
  TESSERA_CHECK(
      nul == std::string_view::npos,
      source,
      ":",
      line_and_column(text, nul),
      ": this is not valid JSON: it holds a zero byte");
  Watcher watcher(source);
  try {
    return json::parse(
        text.begin(),
        text.end(),
        [&watcher](int depth, json::parse_event_t event, json& parsed) {
          return watcher(depth, event, parsed);
        });
  } catch (const json::parse_error& error) {
    // `byte` counts the bytes read, the offending one included.
    const size_t offset = error.byte > 0 ? error.byte - 1 : 0;
    TESSERA_FAIL(
        source,
        ":",
        line_and_column(text, offset),
        ": this is not valid JSON: ",
        reason(error.what()));
  } catch (const json::exception& error) {
    TESSERA_FAIL(source, ": this is not usable JSON: ", reason(error.what()));
  }
}

std::string show_json(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxShown) {
    text.resize(kMaxShown);
    text += "...";
  }
  return text;
}

} // namespace tessera
