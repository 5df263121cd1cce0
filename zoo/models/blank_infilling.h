// SPDX-License-Identifier: Apache-2.0
#pragma once
// blank_infilling_architectures() are the models of the first GLM
// (arXiv:2103.10360), which is trained by blank infilling.

#include "tessera/zoo/models/registry.h"

#include <vector>

namespace tessera::zoo {

/// GLMForConditionalGeneration and GLMModel, as in the authors' code. They take
/// `sep` [B], the number of tokens that all others attend to; position_ids [B,
/// 2, S]: the position of each token, or of the blank that it fills in, and its
/// position within the blank; and labels that each token predicts in place.
std::vector<Architecture> blank_infilling_architectures();

} // namespace tessera::zoo
