// SPDX-License-Identifier: Apache-2.0
// A configuration of `tessera train`, of any bytes.

#include "fuzz/fuzz_target.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/language_model_config.h"

#include <nlohmann/json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const MemoryFile file(text_of(data, size));
  nlohmann::ordered_json resolved;
  try {
    read_finetune_config(file.path(), {}, &resolved);
  } catch (const Error&) {
  }
  try {
    read_language_model_config(file.path(), {}, &resolved);
  } catch (const Error&) {
  }
  return 0;
}
