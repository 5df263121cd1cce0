// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens of a vocabulary that is divided over ranks.

#include "tessera/sharding/parallel/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

struct OwnTokens {
  at::Tensor rows; ///< of the rank's part; 0 for tokens of other ranks
  at::Tensor elsewhere; ///< bool: the token belongs to another rank
};

/// @param tokens int64, of any shape.
OwnTokens own_tokens(const at::Tensor& tokens, const DimSplit& vocab, int rank);

/// On the CPU throws tessera::Error with the token that is outside of [0,
/// size); elsewhere the device reports it, later: nothing waits for it here.
void check_tokens(const at::Tensor& tokens, int64_t size, const char* where);

} // namespace tessera
