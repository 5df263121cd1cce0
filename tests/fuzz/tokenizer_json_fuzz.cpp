// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json of any kind.

#include "fuzz/fuzz_target.h"
#include "fuzz/tokenizer_checks.h"

namespace tessera::fuzz_tokenizer_json {

TESSERA_FUZZ_TARGET(tokenizer_json) {
  const MemoryFile file(input);
  try {
    use_tokenizer(text::Tokenizer::from_file(file.path()), kHardText);
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_tokenizer_json
