// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/bert_text.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tokenizer/aligned_text.h"
#include "tessera/zoo/tokenizer/bert_normalizer.h"
#include "tessera/zoo/tokenizer/utf8.h"

namespace tessera::zoo {

std::vector<std::string> split_bert_words(
    std::string_view text,
    const BertTextOptions& options) {
  TESSERA_CHECK(
      text.size() < (std::size_t{1} << 28),
      "a text of {} bytes is too long to tokenize at once; split it into documents of less than 256 MiB",
      text.size());
  std::string storage;
  AlignedText aligned(valid_utf8(text, storage), 0, false);
  BertNormalizer({.clean_text = true,
                  .handle_chinese_chars = options.split_chinese,
                  .strip_accents = options.strip_accents,
                  .lowercase = options.lower_case})
      .apply(aligned);
  BertPreTokenizer().apply(aligned);
  std::vector<std::string> words;
  words.reserve(aligned.words().size());
  for (size_t i = 0; i < aligned.words().size(); ++i) {
    words.emplace_back(aligned.word(i));
  }
  return words;
}

} // namespace tessera::zoo
