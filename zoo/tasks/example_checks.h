// SPDX-License-Identifier: Apache-2.0
#pragma once
// check_examples() validates files of examples before a model reads them.

#include "tessera/zoo/tasks/example_batches.h"

namespace tessera::zoo {

/// @throws tessera::Error as the constructor of ExampleBatches.
void check_examples(
    const ExampleFiles& files,
    const TrainedHead& head,
    const ExampleOptions& options);

} // namespace tessera::zoo
