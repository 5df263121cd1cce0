// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/weights_attention.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <limits>

namespace tessera::sharding {

at::Tensor weights_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const WeightsAttentionOptions& options) {
  const int64_t shared = query.size(1) / key.size(1);
  const auto for_each_query = [&](const at::Tensor& x) {
    return shared == 1 ? x : x.repeat_interleave(shared, 1);
  };
  at::Tensor scores =
      at::matmul(query, for_each_query(key).transpose(-1, -2)) * options.scale;
  at::Tensor mask = options.mask;
  if (options.causal && !mask.defined()) {
    mask =
        at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool))
            .tril();
  }
  if (mask.defined()) {
    scores = mask.scalar_type() == at::kBool
                 ? scores.masked_fill(
                       ~mask, -std::numeric_limits<double>::infinity())
                 : scores + mask;
  }
  const auto precision =
      query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor weights =
      at::softmax(scores, -1, precision).to(value.scalar_type());
  return at::matmul(
      options.drop ? options.drop(weights) : weights, for_each_query(value));
}

} // namespace tessera::sharding
