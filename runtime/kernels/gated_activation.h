// SPDX-License-Identifier: Apache-2.0
#pragma once
// `gated_activation()` is the product of SwiGLU and GeGLU layers
// (arXiv:2002.05202) in one pass over memory, forward and backward.
//
// [Note: operators of layers] Between matrix products, layers read and write
// memory as often as they have operators. tessera::gated_activation and
// tessera::rotate_heads (rotary_heads.h) do the work of several in one pass.
// They are operators, with kernels for the CPU and for CUDA (layer_cuda.cu), so
// that divided tensors, dry runs and profiles see them as they see LibTorch's.

#include "tessera/runtime/kernels/layer_arguments.h"

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
} // namespace torch::autograd

namespace tessera::runtime {

/// f(gate) up. Differentiable, twice too; saves gate and up. Computes in
/// float32 and rounds once. Deterministic. Runs on the current stream; does not
/// synchronize.
/// @param gate, up of one shape, device and dtype: float32, bfloat16 or
/// float16.
/// @return in their dtype and shape, contiguous.
/// @throws tessera::Error on other dtypes, shapes or devices.
at::Tensor gated_activation(
    const at::Tensor& gate,
    const at::Tensor& up,
    GateFunction function);

/// Whether autograd's node is that of a gated_activation().
bool is_gated_activation(const torch::autograd::Node& node);

/// The result of such a node, computed again, with the same bits, from what it
/// keeps. Without gradient.
at::Tensor gated_activation_again(torch::autograd::Node& node);

} // namespace tessera::runtime
