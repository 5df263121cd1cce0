// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over divided classes ([Note: DTensors]).
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"
#include "tessera/sharding/tensor_parallel/vocab_parallel_loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <optional>

namespace tessera::sharding {

namespace {

LossReduction reduction_of(int64_t reduction) {
  switch (reduction) {
    case at::Reduction::None:
      return LossReduction::kNone;
    case at::Reduction::Sum:
      return LossReduction::kSum;
    default:
      return LossReduction::kMean;
  }
}

at::Tensor cross_entropy_loss(
    const at::Tensor& logits,
    const at::Tensor& target,
    const std::optional<at::Tensor>& weight,
    int64_t reduction,
    int64_t ignore_index,
    double label_smoothing) {
  const DTensorImpl* wrapper = dtensor(logits);
  const int64_t classes = logits.dim() == 1 ? 0 : 1;
  const bool has_local_classes =
      wrapper != nullptr && wrapper->divided() &&
      wrapper->divided()->dim == classes &&
      at::isIntegralType(target.scalar_type(), /*includeBool=*/false) &&
      (!weight || !weight->defined());
  if (!has_local_classes) {
    const at::Tensor x = full_tensor(logits);
    const at::Tensor y = full_tensor(target);
    const DTensorGuard parts;
    return at::cross_entropy_loss(
        x, y, weight, reduction, ignore_index, label_smoothing);
  }
  const at::Tensor loss = vocab_parallel_cross_entropy(
      logits.dim() > 2 ? logits.movedim(1, -1) : logits,
      target.to(at::kLong),
      {.label_smoothing = label_smoothing,
       .ignore_index = ignore_index,
       .reduction = reduction_of(reduction)});
  return loss.to(logits.scalar_type());
}

} // namespace

void register_loss_rules(torch::Library& library) {
  library.impl("cross_entropy_loss", TORCH_FN(cross_entropy_loss));
}

} // namespace tessera::sharding

namespace tessera {

at::Tensor vocab_parallel_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const VocabParallelLossOptions& options) {
  const sharding::DTensorImpl* wrapper = sharding::dtensor(logits);
  if (wrapper == nullptr) {
    TESSERA_CHECK(
        logits.dim() >= 1,
        "vocab_parallel_cross_entropy: the logits have no dimension.");
    Communicator alone("logits of one rank");
    return vocab_parallel_cross_entropy(
        logits,
        full_tensor(target),
        sharding::DimSplit(logits.size(-1), /*parts=*/1),
        alone,
        options);
  }
  TESSERA_CHECK(
      wrapper->divided() && wrapper->dim_from_end() == -1,
      "vocab_parallel_cross_entropy: logits of sizes {} are divided, but not along their last dimension, as those of a column-parallel layer. Make them whole by full_tensor().",
      logits.sizes());
  return vocab_parallel_cross_entropy(
      sharding::local_of(logits),
      full_tensor(target),
      wrapper->divided()->split,
      wrapper->group(),
      options);
}

} // namespace tessera
