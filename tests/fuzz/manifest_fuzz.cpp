// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest, and a rank's report for one, of any bytes.

#include "fuzz/fuzz_target.h"
#include "support/temporary_folder.h"
#include "tessera/engine/checkpoint/manifest.h"

#include <fstream>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  static const TemporaryFolder folder;
  const std::filesystem::path file = folder / "manifest.json";
  std::ofstream(file, std::ios::binary) << text_of(data, size);
  try {
    to_text(read_manifest(folder.path()));
  } catch (const Error&) {
  }
  try {
    to_text(read_report(file));
  } catch (const Error&) {
  }
  return 0;
}
