// SPDX-License-Identifier: Apache-2.0
#pragma once
// `save_weights()` writes the weights of a module, sharded or not, to one
// safetensors file.

#include "tessera/engine/checkpoint/model_tensors.h"

#include <torch/nn/module.h>

#include <filesystem>

namespace tessera::engine {

/// The file of weights saved to `path`: `path` itself if it ends in
/// ".safetensors", else "model.safetensors" in that folder.
std::filesystem::path weights_file(const std::filesystem::path& path);

/// Writes all parameters and registered buffers of a module that is not
/// wrapped, under their names in the module and in their own dtypes; tied ones
/// once, under their first name. The file appears complete or not at all;
/// missing folders are created. load_weights() reads the result. Blocks on the
/// disk.
/// @throws tessera::Error naming the file and what is wrong.
void save_weights(
    const torch::nn::Module& module,
    const std::filesystem::path& path);

/// The same for a module that is sharded or divided over the ranks of a job:
/// writes the whole parameters of all pipeline stages under their names in the
/// whole model, see ModelTensors::for_each(). With master weights, their values
/// are written. Rank 0 writes. Collective.
/// @throws tessera::Error on every rank if rank 0 cannot write.
void save_weights(ModelTensors& model, const std::filesystem::path& path);

} // namespace tessera::engine
