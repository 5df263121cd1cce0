// SPDX-License-Identifier: Apache-2.0
#pragma once
// `write_average()` averages the weights of several models or checkpoints.

#include "tessera/sharding/weights/weight_files.h"

#include <filesystem>
#include <vector>

namespace tessera::sharding {

/// One of the sets of weights that are averaged.
struct AveragedWeights {
  WeightFiles files;
  double factor = 1;
};

/// Writes a safetensors file with the mean of every tensor, sum(factor * x) /
/// sum(factor), in the first one's dtype. Sums are float64; one tensor is in
/// memory at a time. Tensors of integers and booleans are those of the last
/// set, as their mean means nothing (such as counts of batches). Blocks on the
/// disk.
/// @throws tessera::Error naming the tensors, if names or shapes differ, or one
///   set has integers where another has not; or if the factors are not finite
///   or their sum is not above 0. There is then no file.
void write_average(
    const std::vector<AveragedWeights>& sets,
    const std::filesystem::path& file);

} // namespace tessera::sharding
