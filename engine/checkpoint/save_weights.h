// SPDX-License-Identifier: Apache-2.0
#pragma once
// A module's weights as one safetensors file, whole or in parts.

#include "tessera/engine/checkpoint/whole_model.h"

#include <torch/nn/module.h>

#include <filesystem>

namespace tessera {

/// The file that weights saved to `path` are in: `path` itself when it ends in
/// ".safetensors", else "model.safetensors" in that folder.
std::filesystem::path weights_file(const std::filesystem::path& path);

/// Writes all parameters and registered buffers of a module that is whole,
/// under their names in it and in their own types; tied ones once, under their
/// first name. The file appears complete or not at all; missing folders are
/// made. Blocks on the disk. What it wrote, load_weights() reads.
/// @throws tessera::Error naming the file and what is wrong.
void save_weights(
    const torch::nn::Module& module,
    const std::filesystem::path& path);

/// The same for a module that is sharded, or that all ranks of a job have parts
/// of: whole parameters of all stages under the names that they have there, see
/// WholeModel::for_each(). With master weights it is their value. Rank 0
/// writes. Collective.
/// @throws tessera::Error on every rank when rank 0 cannot write.
void save_weights(WholeModel& model, const std::filesystem::path& path);

} // namespace tessera
