// SPDX-License-Identifier: Apache-2.0
#pragma once
// gguf_bytes() encodes the elements of a tensor for a GGUF file.

#include "tessera/zoo/gguf/gguf_writer.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace tessera::zoo {

/// The type in which a weight is stored: `wanted` for a matrix whose rows allow
/// it. Vectors, positions and routers of experts stay F32; rows whose length is
/// not a multiple of Q8_0's block size become F16, as in llama.cpp's converter.
GgufType gguf_type_of(const GgufTensor& tensor, GgufType wanted);

/// Encodes row by row. Q8_0 rounds to the nearest 127th of a block's largest
/// magnitude.
/// @param value floating-point, on the CPU.
std::vector<std::byte> gguf_bytes(const at::Tensor& value, GgufType type);

} // namespace tessera::zoo
