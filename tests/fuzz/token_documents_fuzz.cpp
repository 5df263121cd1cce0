// SPDX-License-Identifier: Apache-2.0
// A file with anything in it as Megatron's index, and as a token file.

#include "fuzz/fuzz_target.h"
#include "tessera/zoo/data/megatron_index.h"
#include "tessera/zoo/data/token_documents.h"

#include <stdexcept>

namespace tessera::fuzz_token_documents {

TESSERA_FUZZ_TARGET(token_documents) {
  const MemoryFile content(input);
  try {
    const auto index = zoo::read_megatron_index(content.path());
    for (size_t i = 0; i + 1 < index.begins.size(); ++i) {
      if (index.begins[i] < 0 || index.begins[i + 1] < index.begins[i]) {
        throw std::logic_error("documents that overlap");
      }
    }
  } catch (const Error&) {
  }
  try {
    const zoo::TokenDocuments documents(content.path(), {.end_token = 0x20});
    for (int64_t i = 0; i < documents.size(); ++i) {
      documents.read(i);
    }
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_token_documents
