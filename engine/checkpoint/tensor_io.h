// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that convert tensors to and from the bytes of safetensors files.

#include "tessera/runtime/io/safetensors.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>

namespace tessera::engine {

/// @throws tessera::Error for dtypes that the format does not have.
runtime::SafetensorsDtype saved_dtype_of(at::ScalarType dtype);

/// @throws tessera::Error for dtypes that LibTorch does not have.
at::ScalarType loaded_dtype_of(runtime::SafetensorsDtype dtype);

/// The bytes of a contiguous CPU tensor; valid as long as the tensor.
std::span<const std::byte> raw_bytes(const at::Tensor& tensor);

/// A copy of the entry on the CPU.
at::Tensor loaded_tensor(const runtime::SafetensorsEntry& entry);

} // namespace tessera::engine
