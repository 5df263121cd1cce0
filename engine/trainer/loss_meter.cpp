// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/loss_meter.h"

#include <ATen/ops/tensor.h>

#include <utility>

namespace tessera::engine {

void LossMeter::add(
    const at::Tensor& loss,
    int64_t parts,
    int64_t tokens,
    int64_t padding) {
  const at::Tensor part =
      loss.detach().to(at::kDouble).div(static_cast<double>(parts));
  sum_ = sum_.defined() ? sum_ + part : part;
  tokens_ += tokens;
  padding_ += padding;
}

LossMeter::Totals LossMeter::take(
    Engine& engine,
    int batches,
    int64_t steps,
    double flops) {
  const auto mean_of = static_cast<double>(batches * steps);
  const at::Tensor sum = std::exchange(sum_, {});
  const double loss = sum.defined() ? sum.item<double>() / mean_of : 0;
  const auto tokens = static_cast<double>(std::exchange(tokens_, 0));
  const auto padding = static_cast<double>(std::exchange(padding_, 0));
  const at::Tensor sums =
      at::tensor({loss, tokens, padding, flops}, at::kDouble);
  engine.sum_over_ranks(sums);
  const auto* values = sums.const_data_ptr<double>();
  return {values[0], values[1], values[2], values[3]};
}

} // namespace tessera::engine
