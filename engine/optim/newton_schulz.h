// SPDX-License-Identifier: Apache-2.0
#pragma once
// The nearest orthogonal matrix, roughly and fast.

#include <ATen/core/Tensor.h>

namespace tessera {

/// U V^T of the singular value decomposition U S V^T of `matrix`, with singular
/// values between about 0.7 and 1.2: `steps` iterations of the quintic
/// Newton-Schulz polynomial of Muon (Jordan et al., 2024).
/// @param matrix [rows, columns], floating point; the computation is in its
///   type.
at::Tensor orthogonalize(const at::Tensor& matrix, int steps);

} // namespace tessera
