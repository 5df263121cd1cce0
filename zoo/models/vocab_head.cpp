// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/vocab_head.h"

#include "tessera/engine/helpers/chunked_cross_entropy.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/vocab_parallel_loss.h"

#include <ATen/ops/linear.h>

namespace tessera::zoo {

at::Tensor VocabHead::logits(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias) const {
  const at::Tensor own = at::linear(context_.enter(hidden), weight, bias);
  const TensorParallel* how = context_.parallel();
  return how == nullptr
             ? own
             : gather_parts(
                   own, -1, DimSplit(vocab_, context_.ranks()), *how->group);
}

at::Tensor VocabHead::loss(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets) const {
  if (const TensorParallel* how = context_.parallel()) {
    return vocab_parallel_cross_entropy(
        at::linear(context_.enter(hidden), weight, bias),
        targets,
        DimSplit(vocab_, context_.ranks()),
        *how->group);
  }
  if (bias.defined()) {
    return cross_entropy(at::linear(hidden, weight, bias), targets);
  }
  return chunked_cross_entropy(hidden, weight, targets);
}

} // namespace tessera::zoo
