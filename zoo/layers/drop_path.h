// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stochastic depth: whole images of a batch go past a part of a layer.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// What a residual branch adds, while training: of each row of the batch
/// nothing with this probability, else x / (1 - probability)
/// (arXiv:1603.09382). Draws one number a row from the default generator, the
/// same ones on all ranks that compute parts of a row, whose generators are in
/// one state ([Note: random keys]). Nothing is drawn for a probability of 0.
at::Tensor drop_path(const at::Tensor& x, double probability, bool train);

/// Of each layer: from 0 for the first to `last` for the last, evenly.
std::vector<double> drop_path_schedule(double last, int64_t layers);

} // namespace tessera::zoo
