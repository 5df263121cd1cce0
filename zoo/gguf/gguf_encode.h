// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tensor's elements as GGUF files keep them.

#include "tessera/zoo/gguf/gguf_writer.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace tessera::zoo {

/// The type that a weight gets: what was asked for, where it is a matrix whose
/// rows allow it. Vectors, positions and routers of experts stay F32; rows that
/// are no multiple of Q8_0's blocks become F16, as llama.cpp's own converter
/// has it.
GgufType gguf_type_of(const GgufTensor& tensor, GgufType wanted);

/// Row by row. Q8_0 rounds to the nearest 127th of a block's largest magnitude.
/// @param value floating-point, on the CPU.
std::vector<std::byte> gguf_bytes(const at::Tensor& value, GgufType type);

} // namespace tessera::zoo
