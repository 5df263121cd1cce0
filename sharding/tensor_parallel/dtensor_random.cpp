// SPDX-License-Identifier: Apache-2.0
// Rules for dropout ([Note: DTensors]). Other random operators are computed on
// the whole, with the same numbers on all ranks.
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"
#include "tessera/sharding/tensor_parallel/parallel_dropout.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/ones_like.h>

namespace tessera::sharding {

namespace {

at::Tensor dropped_part(
    const at::Tensor& local,
    double probability,
    const DTensorImpl& like) {
  return dropout_part(
      local,
      probability,
      like.divided()->dim,
      like.divided()->split,
      *like.tp());
}

at::Tensor drop(const at::Tensor& x, double probability, bool train) {
  const DTensorImpl* wrapper = dtensor(x);
  if (wrapper != nullptr && (!train || probability == 0)) {
    return x;
  }
  const at::Tensor local = local_tensor(x);
  const DTensorGuard parts;
  return wrapper != nullptr && wrapper->divided()
             ? make_dtensor(
                   dropped_part(local, probability, *wrapper),
                   wrapper->divided(),
                   wrapper->tp())
             : at::dropout(local, probability, train);
}

at::Tensor& drop_in_place(at::Tensor& x, double probability, bool train) {
  const DTensorImpl* wrapper = dtensor(x);
  if (wrapper == nullptr) {
    const DTensorGuard parts;
    return at::dropout_(x, probability, train);
  }
  if (train && probability > 0) {
    const at::Tensor factor =
        drop(at::ones_like(x.detach()), probability, train);
    x.mul_(factor);
  }
  return x;
}

} // namespace

void register_random_rules(torch::Library& library) {
  library.impl("dropout", TORCH_FN(drop));
  library.impl("dropout_", TORCH_FN(drop_in_place));
}

} // namespace tessera::sharding
