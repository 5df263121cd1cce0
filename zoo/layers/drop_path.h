// SPDX-License-Identifier: Apache-2.0
#pragma once
// drop_path() implements stochastic depth: samples of a batch skip a residual
// branch.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// In training mode, zeroes each row of the batch of a residual branch with the
/// given probability and divides the others by 1 - probability
/// (arXiv:1603.09382). Draws one number per row from the default generator;
/// ranks that compute parts of a row must have generators in the same state, so
/// that they draw the same ([Note: random keys]). Draws nothing for probability
/// 0.
at::Tensor drop_path(const at::Tensor& x, double probability, bool train);

/// The probability of each layer: linear from 0 for the first to `last` for the
/// last.
std::vector<double> drop_path_schedule(double last, int64_t layers);

} // namespace tessera::zoo
