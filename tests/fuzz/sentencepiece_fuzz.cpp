// SPDX-License-Identifier: Apache-2.0
// A .model file of sentencepiece.

#include "fuzz/fuzz_target.h"
#include "fuzz/tokenizer_checks.h"
#include "support/temporary_folder.h"

#include <fstream>

namespace tessera::fuzz_sentencepiece {

TESSERA_FUZZ_TARGET(sentencepiece) {
  static const TemporaryFolder folder;
  const auto path = folder / "spiece.model";
  std::ofstream(path, std::ios::binary) << input;
  try {
    use_tokenizer(text::Tokenizer::from_file(path), kHardText);
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_sentencepiece
