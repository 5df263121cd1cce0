// SPDX-License-Identifier: Apache-2.0
#pragma once
// cuda_operators_key() makes composite operators call on CPU tensors what they
// call on CUDA.

#include <c10/core/DispatchKeySet.h>

namespace tessera::runtime {

/// A dispatch key above autograd. Where it is included, dropout and
/// scaled_dot_product_attention call the operators that LibTorch uses on CUDA,
/// whose graphs keep other tensors than the CPU's. Registered by the first
/// call.
c10::DispatchKeySet cuda_operators_key();

} // namespace tessera::runtime
