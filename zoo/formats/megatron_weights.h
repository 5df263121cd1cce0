// SPDX-License-Identifier: Apache-2.0
#pragma once
// `megatron_weights()` gives the tensors of a checkpoint of Megatron-LM the
// names and layouts of transformers'.

#include "tessera/sharding/weights/weight_files.h"
#include "tessera/zoo/formats/megatron_checkpoint.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

/// A config.json for the options of the run: of GPT-2, LLaMA, Qwen2 or Qwen3.
/// @throws tessera::Error if the options were not saved, or naming one that
///   these models do not have.
nlohmann::json megatron_config(const MegatronCheckpoint& checkpoint);

/// The weights of a GPT of Megatron-LM, with the partitions of tensor-parallel
/// ranks joined and without the rows of vocabularies that are padding. Names
/// are those of Megatron's own layers, of Megatron-Core's or of Transformer
/// Engine's. Queries, keys and values are stored [3, heads, features] in
/// checkpoints of version 0, [heads, features, 3] of version 1 and, group by
/// group of heads that share a key, [groups, heads + 2, features] since version
/// 2. Nothing is read.
/// @param config of transformers: of GPT-2, LLaMA, Qwen2 or Qwen3.
/// @throws tessera::Error naming a tensor that is not known, or what does not
///   belong together.
sharding::WeightFiles megatron_weights(
    const MegatronCheckpoint& checkpoint,
    const nlohmann::json& config);

} // namespace tessera::zoo
