// SPDX-License-Identifier: Apache-2.0
#pragma once
// blank_infilling_family() has the models of the first GLM (arXiv:2103.10360),
// which is trained by blank infilling.

#include "tessera/zoo/models/registry.h"

namespace tessera::zoo {

/// GLMForConditionalGeneration and GLMModel, as in the authors' code. They take
/// `sep` [B], the number of tokens that all others attend to; position_ids [B,
/// 2, S]: the position of each token, or of the blank that it fills in, and its
/// position within the blank; and labels that each token predicts in place. A
/// part of the family `glm`.
ModelFamily blank_infilling_family();

} // namespace tessera::zoo
