// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/rewriting.h"

#include "tessera/text/tokenizer/byte_alphabet.h"

#include <string>

namespace tessera::text {

void append_byte_characters(char32_t c, std::vector<Rewritten>& code_points) {
  const auto& alphabet = byte_alphabet();
  if (c < 0x80) {
    code_points.push_back({alphabet[c], 0});
    return;
  }
  std::string bytes;
  append_utf8(bytes, c);
  for (size_t i = 0; i < bytes.size(); ++i) {
    code_points.push_back(
        {alphabet[static_cast<unsigned char>(bytes[i])], i > 0 ? 1 : 0});
  }
}

} // namespace tessera::text
