// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/vocab_head.h"

#include "tessera/engine/helpers/linear_cross_entropy.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"
#include "tessera/zoo/layers/linear.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/where.h>

namespace tessera::zoo {

namespace {

/// The targets that count, or 1: the mean of none is 0.
at::Tensor count_of(const at::Tensor& targets) {
  return targets.ne(CrossEntropyOptions().ignore_index).sum().clamp_min(1);
}

} // namespace

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
      count_of(targets),
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
  const bool is_fused = runtime::uses_fused_operators() &&
                        runtime::computes_on_cpu(weight.device());
  if (tp != nullptr && tp->group->size() > 1 && !is_fused) {
    VocabParallelLossOptions options;
    options.reduction = LossReduction::kSum;
    const at::Tensor sum = vocab_parallel_cross_entropy(
        at::linear(hidden, weight, bias), targets, options);
    return is_mean ? sum / count_of(targets) : sum;
  }
  LinearCrossEntropyOptions options;
  options.reduction = is_mean ? LinearCrossEntropyOptions::Reduction::kMean
                              : LinearCrossEntropyOptions::Reduction::kSum;
  const at::Tensor loss =
      linear_cross_entropy(hidden, weight, bias, targets, options);
  // The mean of no targets is NaN there, as in LibTorch.
  return is_mean ? at::where(
                       targets.ne(CrossEntropyOptions().ignore_index).any(),
                       loss,
                       0)
                 : loss;
}

} // namespace tessera::zoo
