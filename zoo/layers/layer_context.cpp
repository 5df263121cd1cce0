// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/layer_context.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/tensor_random.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>

namespace tessera::zoo {

LayerContext::LayerContext(const TensorParallel& tp) : parallel_(tp) {
  TESSERA_CHECK(
      tp.group != nullptr,
      "LayerContext: TensorParallel has no group; omit it for plain layers.");
}

LayerContext LayerContext::on_stage(
    const pipeline::PipelinePosition& position) const {
  LayerContext context = *this;
  context.position_ = position;
  return context;
}

LayerContext LayerContext::over_context(const ContextParallel& cp) const {
  check(cp);
  LayerContext context = *this;
  context.sequences_ = cp;
  return context;
}

LayerContext LayerContext::over_experts(const ExpertParallel& ep) const {
  TESSERA_CHECK(
      ep.group != nullptr && ep.gradients != nullptr,
      "LayerContext: ExpertParallel needs both the expert group and the gradient group");
  LayerContext context = *this;
  context.experts_ = ep;
  return context;
}

LayerContext LayerContext::numbered(int64_t layer) const {
  LayerContext context = *this;
  context.layer_ = layer;
  return context;
}

at::Tensor LayerContext::local_tokens(const at::Tensor& full, int64_t dim)
    const {
  return sequences_ && full.defined()
             ? local_context_part(full, dim, *sequences_)
             : full;
}

at::Tensor LayerContext::all_tokens(const at::Tensor& local) const {
  return sequences_ ? full_context(local, 1, *sequences_) : local;
}

at::Tensor LayerContext::between(const at::Tensor& full) const {
  return parallel_ && parallel_->sequence
             ? shard_tensor(full, parallel_->sequence_dim, *parallel_)
             : full;
}

at::Tensor LayerContext::full(const at::Tensor& x) const {
  return all_tokens(full_tensor(x));
}

at::Tensor LayerContext::dropout(
    const at::Tensor& x,
    double probability,
    bool train) const {
  if (!train || probability == 0) {
    return x;
  }
  std::optional<sharding::TensorRandomScope> tokens;
  if (sequences_) {
    tokens.emplace(*sequences_->group, x.device());
  }
  return at::dropout(x, probability, true);
}

at::Tensor LayerContext::dropout_mask(const at::Tensor& x, double probability)
    const {
  std::optional<sharding::TensorRandomScope> tokens;
  if (sequences_) {
    tokens.emplace(*sequences_->group, x.device());
  }
  return at::empty(x.sizes(), x.options().dtype(at::kBool))
      .bernoulli_(1 - probability);
}

} // namespace tessera::zoo
