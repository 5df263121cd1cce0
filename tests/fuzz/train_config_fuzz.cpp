// SPDX-License-Identifier: Apache-2.0
// A configuration of `tessera train`, of any bytes.

#include "fuzz/fuzz_target.h"
#include "tessera/zoo/tasks/examples_config.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/language_model_config.h"

#include <nlohmann/json.hpp>

namespace tessera::fuzz_train_config {

TESSERA_FUZZ_TARGET(train_config) {
  const MemoryFile file(input);
  nlohmann::ordered_json resolved;
  try {
    zoo::read_finetune_config(file.path(), {}, &resolved);
  } catch (const Error&) {
  }
  try {
    zoo::read_examples_config(file.path(), {}, &resolved);
  } catch (const Error&) {
  }
  try {
    zoo::read_language_model_config(file.path(), {}, &resolved);
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_train_config
