// SPDX-License-Identifier: Apache-2.0
#pragma once
// `torch_weights()` lists the weights in a file of torch.save.

#include "tessera/runtime/io/torch_file.h"
#include "tessera/sharding/weights/weight_entry.h"

#include <filesystem>
#include <string>

namespace tessera::sharding {

/// The weights are the tensors of a state_dict(): of the dictionary that was
/// saved or, if it has one of these keys, of the dictionary there: "module"
/// (DeepSpeed, GLM), "state_dict", "model_state_dict", "model". Those in nested
/// dictionaries have their keys joined by dots; other values are left out.
/// @throws tessera::Error naming the file, also if it has no tensors.
WeightSet torch_weights(const std::filesystem::path& path);

/// A tensor of an open file.
WeightEntry torch_entry(
    const std::string& name,
    const runtime::TorchTensor& tensor);

} // namespace tessera::sharding
