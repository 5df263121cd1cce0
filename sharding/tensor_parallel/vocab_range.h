// SPDX-License-Identifier: Apache-2.0
#pragma once
// Maps tokens to the rows of a partitioned vocabulary.

#include "tessera/sharding/tensors/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::sharding {

struct LocalTokens {
  /// rows in this rank's partition; 0 for tokens of other ranks
  at::Tensor rows;
  at::Tensor elsewhere; ///< bool: the token belongs to another rank
};

/// @param tokens int64, of any shape.
LocalTokens local_tokens(
    const at::Tensor& tokens,
    const DimSplit& vocab,
    int rank);

/// @throws tessera::Error unless `tokens` are int64 and, on the CPU, when one
///   is outside of [0, size), naming it. On a GPU the latter is an asynchronous
///   device error; the call does not synchronize.
void check_tokens(const at::Tensor& tokens, int64_t size, const char* where);

} // namespace tessera::sharding
