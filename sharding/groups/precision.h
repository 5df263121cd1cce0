// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PrecisionPolicy` determines the dtypes of parameters, gradients and buffers
// in mixed-precision training.

#include "tessera/sharding/groups/frozen_weights.h"

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <optional>
#include <vector>

namespace tessera::sharding {

class ModuleChoices;
struct ParameterRecord;

} // namespace tessera::sharding

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// Whether `dtype` is float16 or bfloat16.
inline bool is_low_precision(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

/// By default, everything keeps the module's own dtypes.
///
/// With `parameters` set, floating-point parameters are all-gathered and used
/// in that dtype, while optimizers update float32 master weights. Operators
/// that use a parameter get their other floating-point arguments in its dtype;
/// norm layers return the dtype that they were given.
struct PrecisionPolicy {
  /// bfloat16 or float16: dtype of compute and of all-gathers.
  std::optional<at::ScalarType> parameters;
  /// The type in which gradients are collected and reduced. By default float32
  /// for parameters of a lower precision, else the parameters' type.
  std::optional<at::ScalarType> gradients;
  /// The type in which the gradients of several backward passes add up: that of
  /// `gradients`, which is the default, or float32. A bfloat16 sum stops
  /// growing after a few hundred micro-batches. Gradients that stay whole
  /// between the backward passes (GradientAccumulation::kKeepWhole) are reduced
  /// in this type too, once a step.
  std::optional<at::ScalarType> accumulate;
  /// Of floating-point buffers. By default they keep their type.
  std::optional<at::ScalarType> buffers;
  /// If false, optimizers update the low-precision weights themselves, which
  /// loses updates smaller than half a unit in the last place.
  bool master_weights = true;
  /// Keeps the parameters of LayerNorm, BatchNorm and every other module with
  /// "Norm" in its type name in float32. at::layer_norm, rms_norm, group_norm,
  /// batch_norm and instance_norm take activations of `parameters` with them as
  /// they are and compute statistics in float32, see [Note: mixed norms]; other
  /// norm operators get float32 copies.
  bool norms_in_float32 = true;
  /// In what the weights of linear layers rest that do not require gradients
  /// when the module is wrapped, but those of vocabulary heads;
  /// see [Note: frozen weights in blocks]. ModuleOptions::frozen_weights
  /// chooses for other modules.
  FrozenWeights frozen_weights = FrozenWeights::kNone;

  bool is_mixed() const {
    return parameters.has_value();
  }
};

void visit_fields(runtime::OptionFields& fields, PrecisionPolicy& options);

/// @throws tessera::Error naming the option, its value and the values allowed.
void check(const PrecisionPolicy& policy);

/// Sets ParameterRecord::dtype of every record. Parameters that share a storage
/// get one type.
void choose_dtypes(
    const torch::nn::Module& module,
    const PrecisionPolicy& policy,
    const sharding::ModuleChoices& choices,
    std::vector<sharding::ParameterRecord>& records);

/// Returns the dtype of the gradients of parameters that are used in `dtype`.
at::ScalarType gradient_dtype(
    const PrecisionPolicy& policy,
    at::ScalarType dtype);

/// The type in which those of several backward passes add up.
at::ScalarType accumulate_dtype(
    const PrecisionPolicy& policy,
    at::ScalarType dtype);

/// Gives floating-point buffers the type of policy.buffers.
void convert_buffers(torch::nn::Module& module, const PrecisionPolicy& policy);

} // namespace tessera
