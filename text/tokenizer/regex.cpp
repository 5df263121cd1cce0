// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8

#include "tessera/text/tokenizer/regex.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/recent_characters.h"
#include "tessera/text/tokenizer/regex_syntax.h"
#include "tessera/text/tokenizer/utf8.h"

#include <pcre2.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace tessera::text {

namespace regex_detail {

template <auto kFree>
struct Pcre2Free {
  template <typename Value>
  void operator()(Value* value) const {
    kFree(value);
  }
};
template <typename Value, auto kFree>
using Pcre2Pointer = std::unique_ptr<Value, Pcre2Free<kFree>>;

} // namespace regex_detail

namespace {

using regex_detail::Pcre2Pointer;

std::string pcre2_message(int error) {
  PCRE2_UCHAR message[256];
  const int length = pcre2_get_error_message(error, message, sizeof(message));
  return length < 0
             ? "error " + std::to_string(error)
             : std::string(reinterpret_cast<const char*>(message), length);
}

/// The major version of the tables of Unicode that PCRE2 has.
int unicode_of_pcre2() {
  char version[32] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  return std::atoi(version);
}

/// Enough for any search that is not exponential; PCRE2's own limit of ten
/// million is reached by one word of a megabyte.
constexpr uint32_t kMostSteps = 1'000'000'000;
/// Machine code has a stack of its own; beyond it PCRE2 interprets.
constexpr size_t kLeastStackBytes = size_t{32} << 10;
constexpr size_t kMostStackBytes = size_t{8} << 20;

/// What a thread needs to match; no match outlives the call that made it.
struct MatchScratch {
  Pcre2Pointer<pcre2_match_data, &pcre2_match_data_free> data{
      pcre2_match_data_create(1, nullptr)};
  Pcre2Pointer<pcre2_match_context, &pcre2_match_context_free> context{
      pcre2_match_context_create(nullptr)};
  Pcre2Pointer<pcre2_jit_stack, &pcre2_jit_stack_free> stack{
      pcre2_jit_stack_create(kLeastStackBytes, kMostStackBytes, nullptr)};

  MatchScratch() {
    TESSERA_CHECK(
        data && context, "PCRE2 cannot allocate memory for a regular search");
    pcre2_set_match_limit(context.get(), kMostSteps);
    pcre2_set_depth_limit(context.get(), kMostSteps);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

} // namespace

class Regex::Code {
 public:
  Code(std::string_view pattern, const Pcre2Pattern& translated)
      : pattern_(pattern) {
    const Pcre2Pointer<pcre2_compile_context, &pcre2_compile_context_free>
        context(pcre2_compile_context_create(nullptr));
    TESSERA_CHECK(
        context, "PCRE2 cannot allocate memory for a regular expression");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
    uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK;
    if (translated.has_named_groups) {
      options |= PCRE2_NO_AUTO_CAPTURE; // others do not capture beside them
    }
    int error = 0;
    size_t at = 0;
    code_.reset(pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(translated.pattern.data()),
        translated.pattern.size(),
        options,
        &error,
        &at,
        context.get()));
    TESSERA_CHECK(
        code_,
        "the regular expression {} cannot be compiled: {}, at byte {} of {}, which is how PCRE2 writes it",
        pattern,
        pcre2_message(error),
        at,
        translated.pattern);
    // Fails where programs must not write machine code; then PCRE2 interprets.
    has_machine_code_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  /// The first match that begins at `from` or later. What is before `from` is
  /// seen by what looks behind.
  std::optional<ByteRange> find(std::string_view text, size_t from) const {
    thread_local const MatchScratch scratch;
    const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int result = PCRE2_ERROR_JIT_STACKLIMIT;
    if (has_machine_code_) {
      result = pcre2_jit_match(
          code_.get(),
          subject,
          text.size(),
          from,
          0,
          scratch.data.get(),
          scratch.context.get());
    }
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(
          code_.get(),
          subject,
          text.size(),
          from,
          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
          scratch.data.get(),
          scratch.context.get());
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      return std::nullopt;
    }
    TESSERA_CHECK(
        result >= 0,
        "searching a text of {} bytes for the regular expression {} failed at byte {}: {}; divide the text, or use an expression that tries less",
        text.size(),
        pattern_,
        from,
        pcre2_message(result));
    const size_t* const ends = pcre2_get_ovector_pointer(scratch.data.get());
    return ByteRange{
        static_cast<uint32_t>(ends[0]), static_cast<uint32_t>(ends[1])};
  }

 private:
  std::string pattern_;
  regex_detail::Pcre2Pointer<pcre2_code, &pcre2_code_free> code_;
  bool has_machine_code_ = false;
};

Regex::Regex(std::string_view pattern) {
  const Pcre2Pattern usual = pcre2_syntax(pattern, UnicodeTables::kOfPcre2);
  code_ = std::make_unique<const Code>(pattern, usual);
  const Pcre2Pattern recent =
      pcre2_syntax(pattern, UnicodeTables::kOfUnicode16);
  if (recent.pattern != usual.pattern && unicode_of_pcre2() < 16) {
    code_of_recent_ = std::make_unique<const Code>(pattern, recent);
  }
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::find_all(std::string_view text, std::vector<ByteRange>& matches)
    const {
  const Code& code =
      code_of_recent_ && has_recent_character(text) ? *code_of_recent_ : *code_;
  size_t from = 0;
  std::optional<uint32_t> last_end;
  while (from <= text.size()) {
    const std::optional<ByteRange> match = code.find(text, from);
    if (!match) {
      return;
    }
    if (match->size() == 0 && last_end == match->end) {
      from += from < text.size() ? utf8_length(text, from) : 1;
      continue;
    }
    matches.push_back(*match);
    from = match->end;
    last_end = match->end;
  }
}

} // namespace tessera::text
