// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_reduce.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <c10/core/GradMode.h>
#include <c10/util/ParallelGuard.h>

namespace tessera::runtime {

namespace {

at::Tensor view_of(
    const std::byte* data,
    int64_t numel,
    at::ScalarType dtype,
    c10::Device device) {
  return at::for_blob(const_cast<std::byte*>(data), {numel})
      .options(at::TensorOptions(device).dtype(dtype))
      .target_device(device)
      .make_tensor();
}

void combine(
    at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b,
    ReduceKind kind) {
  if (kind == ReduceKind::kSum) {
    at::add_out(out, a, b);
  } else {
    at::maximum_out(out, a, b);
  }
}

} // namespace

void reduce_terms(
    std::span<const std::byte* const> terms,
    std::byte* out,
    int64_t numel,
    c10::ScalarType dtype,
    ReduceKind kind,
    c10::Device device) {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Each reducing thread starting a team of threads would be too many.
  const c10::ParallelGuard serial(true);
  at::Tensor result = view_of(out, numel, dtype, device);
  const bool low_precision = c10::isReducedFloatingType(dtype);
  const auto term = [&](size_t i) {
    const at::Tensor given = view_of(terms[i], numel, dtype, device);
    return low_precision ? given.to(at::kFloat) : given;
  };
  if (terms.size() == 2 && !low_precision) {
    combine(result, term(0), term(1), kind);
    return;
  }
  at::Tensor sum = low_precision ? term(0) : term(0).clone();
  for (size_t i = 1; i < terms.size(); ++i) {
    combine(sum, sum, term(i), kind);
  }
  result.copy_(sum);
}

} // namespace tessera::runtime
