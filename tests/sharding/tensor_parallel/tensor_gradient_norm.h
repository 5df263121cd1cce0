// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of gradients of which each rank has a part, for training loops of tests
// without an engine.

#include "support/power_sums.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera {

namespace detail {

/// Of what each rank has a part, and of what every rank has whole.
struct Gradients {
  std::vector<at::Tensor> parts;
  std::vector<at::Tensor> full;
};

inline Gradients gradients_of(const torch::nn::Module& module) {
  const TensorSpecs specs = specs_in(module);
  Gradients found;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.grad().defined()) {
      const bool part = specs.at(parameter.unsafeGetTensorImpl())
                            .divided_dim(kTensorAxis)
                            .has_value();
      (part ? found.parts : found.full)
          .push_back(parameter.grad().contiguous().view({-1}));
    }
  }
  return found;
}

/// The power sum of all of them as one.
inline double joined_power_sum(
    const std::vector<at::Tensor>& tensors,
    double p) {
  double result = 0;
  for (const double sum : runtime::power_sums(tensors, p)) {
    if (!std::isinf(p)) {
      result += sum;
    } else if (!std::isnan(result) && !(sum <= result)) {
      result = sum; // NaN too
    }
  }
  return result;
}

} // namespace detail

/// The p-norm of all gradients in `module`, as one rank with the whole module
/// would find it: parts (specs_in()) are added up over `group`; what every rank
/// has whole counts once. Parameters without a gradient count as zero.
/// Collective; blocks.
/// @param p above 0; infinity for the largest magnitude.
/// @return the same on all ranks; NaN or infinity when a gradient has one.
inline double tensor_gradient_norm(
    const torch::nn::Module& module,
    Communicator& group,
    double p = 2) {
  TESSERA_CHECK(
      p > 0, "a gradient norm of order {}; it takes an order above 0.", p);
  const c10::NoGradGuard no_grad;
  const detail::Gradients gradients = detail::gradients_of(module);
  const double parts = detail::joined_power_sum(gradients.parts, p);
  const double full = detail::joined_power_sum(gradients.full, p);
  const char* label = "norm of tensor-parallel gradients";
  if (!std::isinf(p)) {
    const at::Tensor total = at::tensor({parts}, at::kDouble);
    group.all_reduce_sum(total, label).wait();
    // abs: the NaN of inf - inf has a sign, which would be printed.
    return std::abs(std::pow(total.item<double>() + full, 1 / p));
  }
  // A maximum over the ranks may lose a NaN.
  const bool bad = std::isnan(parts) || std::isnan(full);
  const at::Tensor largest = at::tensor(
      {bad ? 0 : std::max(parts, full), bad ? 1.0 : 0.0}, at::kDouble);
  group.all_reduce_max(largest, label).wait();
  return largest[1].item<double>() > 0 ? std::nan("")
                                       : largest[0].item<double>();
}

/// Scales all gradients so that their norm is at most `max_norm`; where the
/// norm is not finite they are left as they are. Collective; blocks.
/// @return the norm before.
inline double clip_tensor_gradients(
    const torch::nn::Module& module,
    Communicator& group,
    double max_norm,
    double p = 2) {
  TESSERA_CHECK(
      max_norm > 0,
      "gradients cannot be clipped to a norm of {}; it takes one above 0.",
      max_norm);
  const double norm = tensor_gradient_norm(module, group, p);
  if (std::isfinite(norm) && norm > max_norm) {
    const c10::NoGradGuard no_grad;
    for (const at::Tensor& parameter : module.parameters()) {
      if (parameter.grad().defined()) {
        parameter.grad().mul_(max_norm / norm);
      }
    }
  }
  return norm;
}

} // namespace tessera
