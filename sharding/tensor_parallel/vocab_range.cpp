// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/vocab_range.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/_assert_async.h>

namespace tessera::sharding {

LocalTokens local_tokens(
    const at::Tensor& tokens,
    const DimSplit& vocab,
    int rank) {
  const at::Tensor rows = tokens - vocab.begin(rank);
  const at::Tensor elsewhere =
      rows.lt(0).logical_or_(rows.ge(vocab.length(rank)));
  return {rows.masked_fill(elsewhere, 0), elsewhere};
}

void check_tokens(const at::Tensor& tokens, int64_t size, const char* where) {
  TESSERA_CHECK(
      tokens.scalar_type() == at::kLong,
      "{}: tokens are {}; they must be int64.",
      where,
      tokens.scalar_type());
  const at::Tensor outside = tokens.lt(0).logical_or_(tokens.ge(size));
  if (!tokens.is_cpu()) {
    at::_assert_async(
        outside.any().logical_not(), "a token is outside of the vocabulary");
    return;
  }
  TESSERA_CHECK(
      !outside.any().item<bool>(),
      "{}: token {} is outside of the vocabulary, 0 to {}.",
      where,
      tokens.masked_select(outside)[0].item<int64_t>(),
      size - 1);
}

} // namespace tessera::sharding
