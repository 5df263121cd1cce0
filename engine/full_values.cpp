// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/full_values.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace tessera::engine {

namespace {

int64_t divided_dim(const sharding::DividedParameter& division) {
  return *division.spec.divided_dim(kTensorAxis);
}

} // namespace

const sharding::DividedParameter* division_of(const at::Tensor& parameter) {
  const auto* division = sharding::divided_parameter(parameter);
  return division != nullptr && division->tp->group->size() > 1 &&
                 division->spec.divided_dim(kTensorAxis)
             ? division
             : nullptr;
}

at::Tensor full_value_of(const at::Tensor& local, const at::Tensor& parameter) {
  const auto* division = division_of(parameter);
  if (division == nullptr) {
    return local;
  }
  const c10::NoGradGuard no_grad;
  return sharding::gather_parts(
      local, divided_dim(*division), division->split(), *division->tp->group);
}

at::Tensor full_gradient_of(
    const at::Tensor& local,
    const at::Tensor& parameter) {
  const auto* division = division_of(parameter);
  if (division == nullptr) {
    return local;
  }
  const c10::NoGradGuard no_grad;
  Communicator& group = *division->tp->group;
  // Its dtype, which a rank without it does not know.
  const int64_t dtype =
      local.defined() ? static_cast<int64_t>(local.scalar_type()) : -1;
  const int64_t known =
      sharding::gather_parts(
          at::full({1}, dtype, parameter.options().dtype(at::kLong)),
          0,
          sharding::DimSplit(group.size(), group.size()),
          group)
          .max()
          .item<int64_t>();
  if (known < 0) {
    return {};
  }
  return full_value_of(
      local.defined() ? local
                      : at::zeros(
                            parameter.sizes(),
                            parameter.options()
                                .dtype(static_cast<at::ScalarType>(known))
                                .requires_grad(false)),
      parameter);
}

at::Tensor local_value_of(const at::Tensor& full, const at::Tensor& parameter) {
  const auto* division = division_of(parameter);
  if (division == nullptr) {
    return full;
  }
  TESSERA_CHECK(
      full.sizes() == c10::IntArrayRef(division->spec.sizes),
      "a value of '{}' has sizes {}; the whole parameter, which {} tensor-parallel ranks divide, has {}. Pass the whole value.",
      division->name(),
      full.sizes(),
      division->tp->group->size(),
      c10::IntArrayRef(division->spec.sizes));
  const sharding::DimSplit split = division->split();
  const int rank = division->tp->group->rank();
  return full.narrow(
      divided_dim(*division), split.begin(rank), split.length(rank));
}

} // namespace tessera::engine
