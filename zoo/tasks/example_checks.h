// SPDX-License-Identifier: Apache-2.0
#pragma once
// What may be wrong with examples, before a model sees them.

#include "tessera/zoo/tasks/example_batches.h"

namespace tessera::zoo {

/// @throws tessera::Error as ExampleBatches() says.
void check_examples(
    const ExampleFiles& files,
    const TrainedHead& head,
    const ExampleOptions& options);

} // namespace tessera::zoo
