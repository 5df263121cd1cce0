// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/tensor_parallel.h"

#include "tessera/sharding/parallel/redistribute.h"

namespace tessera {

Placement between_layers(const TensorParallel& how) {
  return how.sequence ? Placement(Shard{how.sequence_dim}) : Replicate{};
}

at::Tensor enter_layer(const at::Tensor& between, const TensorParallel& how) {
  return redistribute(between, between_layers(how), Shared{}, *how.group);
}

at::Tensor leave_layer(const at::Tensor& partial, const TensorParallel& how) {
  return redistribute(partial, Partial{}, between_layers(how), *how.group);
}

at::Tensor whole_parameter(
    const at::Tensor& parameter,
    const TensorParallel& how) {
  return how.sequence && parameter.defined()
             ? redistribute(parameter, Replicate{}, Shared{}, *how.group)
             : parameter;
}

} // namespace tessera
