// SPDX-License-Identifier: Apache-2.0
// A file with anything in it as safetensors.

#include "fuzz/fuzz_target.h"
#include "tessera/runtime/io/safetensors.h"

namespace tessera::fuzz_safetensors {

TESSERA_FUZZ_TARGET(safetensors) {
  const MemoryFile content(input);
  try {
    const auto file = runtime::SafetensorsFile::open(content.path());
    for (const runtime::SafetensorsEntry& entry : file.entries()) {
      // What lies outside of the file cannot be read.
      [[maybe_unused]] volatile std::byte seen{};
      if (!entry.data.empty()) {
        seen = entry.data.front();
        seen = entry.data.back();
      }
      TESSERA_CHECK(file.contains(entry.name), "an entry is not found");
    }
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_safetensors
