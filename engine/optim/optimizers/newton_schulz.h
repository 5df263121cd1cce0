// SPDX-License-Identifier: Apache-2.0
#pragma once
// `orthogonalize()` approximates the nearest orthogonal matrix.

#include <ATen/core/Tensor.h>

namespace tessera::engine {

/// Approximates U V^T of the singular value decomposition U S V^T of `matrix`,
/// with singular values between about 0.7 and 1.2, by `steps` iterations of the
/// quintic Newton-Schulz polynomial of Muon (Jordan et al., 2024).
/// @param matrix [rows, columns], floating point; the computation uses its
///   dtype.
at::Tensor orthogonalize(const at::Tensor& matrix, int steps);

} // namespace tessera::engine
