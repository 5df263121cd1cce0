// SPDX-License-Identifier: Apache-2.0
#pragma once
// What may be wrong with examples, before a model sees them.

#include "tessera/zoo/tasks/example_batches.h"

#include <string>

namespace tessera {

/// What the numbers of an input are.
enum class InputKind {
  kTokens, ///< of the vocabulary
  kWhole, ///< positions, masks, places
  kLabels,
  kPixels,
  kNumbers,
};

/// By name; kWhole for those that only models from elsewhere have.
InputKind kind_of_input(const std::string& name);

/// @throws tessera::Error as ExampleBatches() says.
void check_examples(
    const ExampleFiles& files,
    const TrainedHead& head,
    const ExampleOptions& options);

/// @throws tessera::Error where numbers are not within 0 .. bound - 1, naming
///     the file, the tensor and the first that is not; labels may be -100,
///     none.
void check_range(
    const ExampleFiles& files,
    const std::string& name,
    const at::Tensor& numbers,
    int64_t bound);

} // namespace tessera
