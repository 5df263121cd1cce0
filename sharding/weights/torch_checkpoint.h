// SPDX-License-Identifier: Apache-2.0
#pragma once
// `dcp_weights()` and `zero_weights()` list the weights in checkpoints of
// PyTorch's torch.distributed.checkpoint (FSDP) and of DeepSpeed: whole
// tensors, in the pieces that ranks wrote.

#include "tessera/sharding/weights/weight_entry.h"

#include <filesystem>

namespace tessera::sharding {

/// Whether a folder is a checkpoint of torch.distributed.checkpoint.
bool is_dcp(const std::filesystem::path& folder);

/// The weights are the tensors below one of these keys of what was saved, if it
/// has one, without it: "model", "state_dict", "model_state_dict", "module",
/// also inside of "app"; else all tensors. Files must not be compressed.
/// @throws tessera::Error naming the file.
WeightSet dcp_weights(const std::filesystem::path& folder);

/// The folder in a folder of checkpoints that its file "latest" (DeepSpeed) or
/// "latest_checkpointed_iteration.txt" (Megatron, GLM) names; without such a
/// file the folder itself.
/// @throws tessera::Error if there is no such folder.
std::filesystem::path step_folder(const std::filesystem::path& folder);

/// Whether a folder, or step_folder(), is a checkpoint of DeepSpeed with ZeRO.
bool is_zero(const std::filesystem::path& folder);

/// The float32 weights of stage 1, 2 or 3, as DeepSpeed's zero_to_fp32.py has
/// them: from the optimizer's files, and from the model's files frozen weights
/// and buffers, in their own types. Tied weights have all their names.
/// @throws tessera::Error naming the file, also if some ranks' files are
///   missing or if the layers were divided by tensor parallelism.
WeightSet zero_weights(const std::filesystem::path& folder);

} // namespace tessera::sharding
