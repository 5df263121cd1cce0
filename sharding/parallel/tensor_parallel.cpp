// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/tensor_parallel.h"

#include "tessera/sharding/parallel/group_operations.h"

namespace tessera {

at::Tensor enter_layer(const at::Tensor& between, const TensorParallel& how) {
  return how.sequence ? all_gather_parts(between, how.sequence_dim, *how.group)
                      : copy_to_group(between, *how.group);
}

at::Tensor leave_layer(const at::Tensor& partial, const TensorParallel& how) {
  return how.sequence
             ? reduce_scatter_parts(partial, how.sequence_dim, *how.group)
             : reduce_over_group(partial, *how.group);
}

at::Tensor whole_parameter(
    const at::Tensor& parameter,
    const TensorParallel& how) {
  return how.sequence && parameter.defined()
             ? copy_to_group(parameter, *how.group)
             : parameter;
}

} // namespace tessera
