// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PostProcessor` joins the tokens of one or two texts and adds special tokens;
// `read_post_processor()` makes one of a tokenizer.json.

#include "tessera/runtime/core/json_value.h"
#include "tessera/text/tokenizer/encoding.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::text {

/// Immutable; may be used from several threads at once.
class PostProcessor {
 public:
  virtual ~PostProcessor() = default;

  /// @param texts one or two, in place; they stay apart.
  /// @param adds_tokens whether special tokens are added.
  virtual void apply(std::vector<TokenSequence>& texts, bool adds_tokens)
      const = 0;
  /// How many tokens it adds to one text or to a pair.
  virtual size_t added_count(bool is_pair) const = 0;
};

/// What a post-processor needs to know of a token's text: a view that is valid
/// as long as the tokenizer.
using TokenText = std::function<const std::string&(int64_t id)>;

/// The post-processor that `section` describes, with the fields and the results
/// of the `tokenizers` library: BertProcessing, ByteLevel, RobertaProcessing,
/// Sequence, TemplateProcessing.
/// @param token_text as files write tokens.
/// @throws tessera::Error on another type or a value that does not fit it.
std::unique_ptr<const PostProcessor> read_post_processor(
    const runtime::JsonValue& section,
    TokenText token_text);

/// Adds tokens before and after a text, and after the second of a pair: for
/// tokenizers whose files say only that.
std::unique_ptr<const PostProcessor> surrounding_post_processor(
    std::vector<int64_t> before,
    std::vector<int64_t> after);

} // namespace tessera::text
