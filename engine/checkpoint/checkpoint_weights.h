// SPDX-License-Identifier: Apache-2.0
#pragma once
// `checkpoint_weights()` lists the weights in a checkpoint as files of weights,
// so that other models and programs can load them.

#include "tessera/sharding/weights/weight_files.h"

#include <filesystem>

namespace tessera::engine {

/// Whether a path is a checkpoint, or a folder of checkpoints, for
/// find_checkpoint().
bool is_checkpoint(const std::filesystem::path& path);

/// The parameters and buffers of a checkpoint under the names that they have in
/// the model that was wrapped; parameters with master weights are those. Of a
/// buffer that ranks have values of their own of, such as statistics of
/// batches, those of the first rank. Checksums are compared when a part is
/// read.
/// @param path see find_checkpoint().
/// @throws tessera::Error naming the file and what is missing or damaged.
sharding::WeightFiles checkpoint_weights(const std::filesystem::path& path);

/// checkpoint_weights() if the path is a checkpoint, else
/// sharding::WeightFiles::open().
sharding::WeightFiles open_weights(const std::filesystem::path& path);

} // namespace tessera::engine
