// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/layer_context.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/parallel_dropout.h"
#include "tessera/sharding/parallel/redistribute.h"

#include <ATen/ops/dropout.h>

namespace tessera::zoo {

LayerContext::LayerContext(const TensorParallel& how) : parallel_(how) {
  TESSERA_CHECK(
      how.group != nullptr,
      "LayerContext: TensorParallel has no group; omit it for plain layers.");
}

LayerContext LayerContext::on_stage(
    const pipeline::PipelinePlace& place) const {
  LayerContext context = *this;
  context.place_ = place;
  return context;
}

LayerContext LayerContext::over_context(const ContextParallel& how) const {
  check(how);
  LayerContext context = *this;
  context.sequences_ = how;
  return context;
}

LayerContext LayerContext::over_experts(const ExpertParallel& how) const {
  TESSERA_CHECK(
      how.group != nullptr && how.gradients != nullptr,
      "LayerContext: ExpertParallel needs both the expert group and the gradient group");
  LayerContext context = *this;
  context.experts_ = how;
  return context;
}

int LayerContext::ranks() const {
  return parallel_ ? parallel_->group->size() : 1;
}

int LayerContext::rank() const {
  return parallel_ ? parallel_->group->rank() : 0;
}

LayerContext LayerContext::numbered(int64_t layer) const {
  LayerContext context = *this;
  context.layer_ = layer;
  return context;
}

at::Tensor LayerContext::own_tokens(const at::Tensor& whole, int64_t dim)
    const {
  return sequences_ && whole.defined()
             ? own_context_part(whole, dim, *sequences_)
             : whole;
}

at::Tensor LayerContext::all_tokens(const at::Tensor& own) const {
  return sequences_ ? whole_context(own, 1, *sequences_) : own;
}

at::Tensor LayerContext::enter(const at::Tensor& between) const {
  return parallel_ ? enter_layer(between, *parallel_) : between;
}

at::Tensor LayerContext::between(const at::Tensor& whole) const {
  return parallel_ ? redistribute(
                         whole,
                         Replicate{},
                         between_layers(*parallel_),
                         *parallel_->group)
                   : whole;
}

at::Tensor LayerContext::whole(const at::Tensor& between) const {
  return all_tokens(
      parallel_ ? redistribute(
                      between,
                      between_layers(*parallel_),
                      Replicate{},
                      *parallel_->group)
                : between);
}

at::Tensor LayerContext::replicated(const at::Tensor& parameter) const {
  return parallel_ ? whole_parameter(parameter, *parallel_) : parameter;
}

at::Tensor LayerContext::shared(const at::Tensor& parameter) const {
  return parallel_ && parameter.defined()
             ? redistribute(parameter, Replicate{}, Shared{}, *parallel_->group)
             : parameter;
}

at::Tensor LayerContext::dropout(
    const at::Tensor& between,
    double probability,
    bool train) const {
  if (!train || probability == 0) {
    return between;
  }
  const PartsRandomScope tokens(
      *this, between.device(), /*tensor_parts=*/false);
  return parallel_ ? dropout_between(between, probability, *parallel_)
                   : at::dropout(between, probability, true);
}

at::Tensor LayerContext::dropout_part(
    const at::Tensor& part,
    double probability,
    int64_t dim,
    int64_t size,
    int64_t unit) const {
  const PartsRandomScope tokens(*this, part.device(), /*tensor_parts=*/false);
  return parallel_ ? tessera::dropout_part(
                         part,
                         probability,
                         dim,
                         sharding::DimSplit(size, ranks(), unit),
                         *parallel_)
                   : at::dropout(part, probability, true);
}

PartsRandomScope::PartsRandomScope(
    const LayerContext& context,
    const at::Device& device,
    bool tensor_parts) {
  if (context.context() != nullptr) {
    tokens_.emplace(*context.context()->group, device);
  }
  if (tensor_parts && context.parallel() != nullptr) {
    parts_.emplace(*context.parallel()->group, device);
  }
}

} // namespace tessera::zoo
