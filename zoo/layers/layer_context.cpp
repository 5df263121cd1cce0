// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/layer_context.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/tensor_random.h"

#include <ATen/ops/dropout.h>

namespace tessera::zoo {

LayerContext::LayerContext(const TensorParallel& how) : parallel_(how) {
  TESSERA_CHECK(
      how.group != nullptr,
      "LayerContext: TensorParallel has no group; leave it out for plain "
      "layers.");
}

LayerContext LayerContext::on_stage(const PipelinePlace& place) const {
  LayerContext context = *this;
  context.place_ = place;
  return context;
}

int LayerContext::ranks() const {
  return parallel_ ? parallel_->group->size() : 1;
}

int LayerContext::rank() const {
  return parallel_ ? parallel_->group->rank() : 0;
}

at::Tensor LayerContext::enter(const at::Tensor& between) const {
  return parallel_ ? enter_layer(between, *parallel_) : between;
}

at::Tensor LayerContext::between(const at::Tensor& whole) const {
  if (!parallel_ || !parallel_->sequence) {
    return whole;
  }
  const int64_t dim = parallel_->sequence_dim;
  return take_part(
      whole, dim, DimSplit(whole.size(dim), ranks()), *parallel_->group);
}

at::Tensor LayerContext::whole(const at::Tensor& between) const {
  if (!parallel_ || !parallel_->sequence) {
    return between;
  }
  const int64_t dim = parallel_->sequence_dim;
  return gather_parts(
      between,
      dim,
      DimSplit(between.size(dim) * ranks(), ranks()),
      *parallel_->group);
}

at::Tensor LayerContext::replicated(const at::Tensor& parameter) const {
  return parallel_ ? whole_parameter(parameter, *parallel_) : parameter;
}

at::Tensor LayerContext::shared(const at::Tensor& parameter) const {
  return parallel_ && parameter.defined()
             ? copy_to_group(parameter, *parallel_->group)
             : parameter;
}

at::Tensor LayerContext::dropout(
    const at::Tensor& between,
    double probability,
    bool train) const {
  if (!train || probability == 0) {
    return between;
  }
  std::optional<TensorRandomScope> parts;
  if (parallel_ && parallel_->sequence) {
    parts.emplace(*parallel_->group, between.device());
  }
  return at::dropout(between, probability, true);
}

} // namespace tessera::zoo
