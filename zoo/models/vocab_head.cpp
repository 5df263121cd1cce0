// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/vocab_head.h"

#include "tessera/engine/helpers/linear_cross_entropy.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"
#include "tessera/zoo/layers/linear.h"

#include <ATen/ops/linear.h>

namespace tessera::zoo {

at::Tensor VocabHead::logits(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias) const {
  return context_.full(linear_product(hidden, weight, bias));
}

at::Tensor VocabHead::loss(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets) const {
  const ContextParallel* cp = context_.context();
  if (cp == nullptr) {
    return local_loss(hidden, weight, bias, targets, /*is_mean=*/true);
  }
  return context_mean(
      local_loss(
          hidden,
          weight,
          bias,
          context_.local_tokens(targets),
          /*is_mean=*/false),
      targets.ne(CrossEntropyOptions().ignore_index).sum(),
      *cp);
}

void VocabHead::add_result(
    const ModelInput& input,
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets,
    ModelOutput& output) const {
  if (input.loss_only) {
    TESSERA_CHECK(targets.defined(), "loss_only without labels");
    output.loss = loss(hidden, weight, bias, targets);
    return;
  }
  output.logits = logits(
      input.last_logits ? hidden.narrow(1, hidden.size(1) - 1, 1) : hidden,
      weight,
      bias);
  if (targets.defined()) {
    output.loss = cross_entropy(output.logits, targets);
  }
}

at::Tensor VocabHead::local_loss(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets,
    bool is_mean) const {
  const TensorParallel* tp = context_.parallel();
  if (tp != nullptr && tp->group->size() > 1) {
    VocabParallelLossOptions options;
    options.reduction = is_mean ? LossReduction::kMean : LossReduction::kSum;
    return vocab_parallel_cross_entropy(
        at::linear(hidden, weight, bias), targets, options);
  }
  LinearCrossEntropyOptions options;
  options.reduction = is_mean ? LinearCrossEntropyOptions::Reduction::kMean
                              : LinearCrossEntropyOptions::Reduction::kSum;
  return linear_cross_entropy(hidden, weight, bias, targets, options);
}

} // namespace tessera::zoo
