// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextClassificationOptions` are the options of the task text_classification.

#include "tessera/tasks/text_classification_data.h"

#include <string>
#include <vector>

namespace tessera::tasks {

/// Parts of the section `data`.
struct TextClassificationOptions {
  TextClassificationColumns columns;
  std::vector<std::string> verbalizers; ///< see verbalizers_of()
  std::vector<std::string> metrics; ///< empty: the usual
};

} // namespace tessera::tasks
