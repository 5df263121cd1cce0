// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Regex` is a regular expression in the syntax of tokenizer.json files, that
// of Oniguruma, over UTF-8.

#include "tessera/zoo/tokenizer/aligned_text.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::zoo {

/// Immutable; may be used from several threads at once. Compiled to machine
/// code where PCRE2 can.
class Regex {
 public:
  /// @throws tessera::Error if the pattern is wrong or has what
  ///   pcre2_syntax() refuses.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// The first match that begins at `from` or later. What is before `from` is
  /// seen by what looks behind.
  /// @param text valid UTF-8.
  /// @throws tessera::Error if the search takes too many steps or too much
  ///   memory.
  std::optional<ByteRange> find(std::string_view text, size_t from) const;

 private:
  class Code;
  std::unique_ptr<const Code> code_;
};

} // namespace tessera::zoo
