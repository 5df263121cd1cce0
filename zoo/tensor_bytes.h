// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors from and to the bytes of a safetensors file.

#include "tessera/runtime/io/safetensors.h"

#include <torch/types.h>

#include <cstddef>
#include <span>

namespace tessera {

/// The dtype's name in files.
/// @throws Error for a dtype that safetensors does not have.
SafetensorsDtype safetensors_dtype_of(torch::ScalarType dtype);

/// A copy of the entry on the CPU, in its dtype.
/// @throws Error unless the entry is F32, F16 or BF16.
torch::Tensor tensor_of(const SafetensorsEntry& entry);

/// The bytes of a contiguous CPU tensor; valid as long as it.
std::span<const std::byte> bytes_of(const torch::Tensor& tensor);

} // namespace tessera
