// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first GLM (arXiv:2103.10360), which fills in blanks.

#include "tessera/zoo/models/registry.h"

#include <vector>

namespace tessera::zoo {

/// GLMForConditionalGeneration and GLMModel, as their authors' own code has
/// them. They take `sep` [B], the number of tokens that all others see;
/// position_ids [B, 2, S], the place of each token, or of the blank that it
/// fills in, and its place within the blank; and labels for each place itself.
std::vector<Architecture> blank_infilling_architectures();

} // namespace tessera::zoo
