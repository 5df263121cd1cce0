// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest, and a rank's report for one, of any bytes.

#include "fuzz/fuzz_target.h"
#include "support/temporary_folder.h"
#include "tessera/engine/checkpoint/manifest.h"

#include <fstream>

namespace tessera::fuzz_manifest {

TESSERA_FUZZ_TARGET(manifest) {
  static const TemporaryFolder folder;
  const std::filesystem::path file = folder / "manifest.json";
  std::filesystem::remove(file); // truncating one waits for the disk
  std::ofstream(file, std::ios::binary) << input;
  try {
    engine::to_text(engine::read_manifest(folder.path()));
  } catch (const Error&) {
  }
  try {
    to_text(engine::read_report(file));
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_manifest
