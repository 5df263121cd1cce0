// SPDX-License-Identifier: Apache-2.0
#pragma once
// `use_fast_operators()` takes the place of LibTorch's kernels where others are
// faster.
//
// Products go by way of copies: see [Note: aligned products]
// (product_padding.h).
//
// [Note: added biases] torch::nn::Linear adds its bias to the product in place.
// LibTorch's kernel for that moves a few bytes an instruction, and takes three
// times as long as reading and writing would; ours has the same bits. The
// gradient of a bias is a sum over rows: ours reads them at the rate of the
// memory, LibTorch's at half of it. It is as exact, in another order of sums.
//
// [Note: copied rows] LibTorch copies parts of rows, such as the logits of all
// tokens but the last, element by element; ours moves words.

#include <c10/core/DeviceType.h>

namespace tessera::runtime {

/// Replaces the kernels of mm, addmm, add_, sum and copy_ for tensors of the
/// device, or puts LibTorch's back. In the whole process. Idempotent. Do not
/// call it while operators run. Dry runs then count what the kernels take.
/// @param device an accelerator whose kernels LibTorch has loaded.
void use_fast_operators(bool use, c10::DeviceType device);

} // namespace tessera::runtime
