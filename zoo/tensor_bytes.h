// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors to the bytes of a safetensors file.

#include "tessera/runtime/io/safetensors.h"

#include <torch/types.h>

#include <cstddef>
#include <span>

namespace tessera {

/// The dtype's name in files.
/// @throws Error for a dtype that safetensors does not have.
SafetensorsDtype safetensors_dtype_of(torch::ScalarType dtype);

/// The bytes of a contiguous CPU tensor; valid as long as it.
std::span<const std::byte> bytes_of(const torch::Tensor& tensor);

} // namespace tessera
