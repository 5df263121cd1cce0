// SPDX-License-Identifier: Apache-2.0
// A configuration of `tessera train`, of any bytes.

#include "fuzz/fuzz_target.h"
#include "tessera/tasks/training_config.h"

namespace tessera::fuzz_train_config {

TESSERA_FUZZ_TARGET(train_config) {
  const MemoryFile file(input);
  // As of the file's own task, and of each.
  for (const char* const task :
       {"",
        "text_classification",
        "question_answering",
        "language_model",
        "supervised",
        "preference",
        "reward",
        "image_folder",
        "examples"}) {
    std::vector<std::string> overrides;
    if (*task != 0) {
      overrides.push_back(std::string("task=") + task);
    }
    try {
      tasks::read_training_config(file.path(), overrides);
    } catch (const Error&) {
    }
  }
}

} // namespace tessera::fuzz_train_config
