// SPDX-License-Identifier: Apache-2.0
#pragma once
// prompt_batch() makes one batch of prompts of different lengths.

#include "tessera/zoo/models/model.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// Pads the prompts on the left, as generate() takes them: input_ids, and
/// attention_mask if there is padding.
/// @param prompts one or more, each of one token or more.
/// @param padding a token of the vocabulary, which is not looked at.
ModelInput prompt_batch(
    const std::vector<std::vector<int64_t>>& prompts,
    int64_t padding,
    at::Device device);

} // namespace tessera::zoo
