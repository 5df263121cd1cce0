// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Regex` is a regular expression in the syntax of tokenizer.json files, that
// of Oniguruma, over UTF-8.

#include "tessera/text/tokenizer/aligned_text.h"

#include <memory>
#include <string_view>
#include <vector>

namespace tessera::text {

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

  /// Appends all matches in `text`, in order; they do not overlap. They may be
  /// empty, but not right behind another one.
  /// @param text valid UTF-8.
  /// @throws tessera::Error if the search takes too many steps or too much
  ///   memory.
  void find_all(std::string_view text, std::vector<ByteRange>& matches) const;

 private:
  class Code;
  std::unique_ptr<const Code> code_;
  /// For texts with characters that PCRE2 does not know; null: as for others.
  std::unique_ptr<const Code> code_of_recent_;
};

} // namespace tessera::text
