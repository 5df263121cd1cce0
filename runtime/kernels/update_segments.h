// SPDX-License-Identifier: Apache-2.0
#pragma once
// `update_segments_()` updates many runs of flat shards at once: on CUDA with
// one launch for some twenty runs, on CPU as one job for the threads of
// update_pool().

#include "tessera/runtime/kernels/update_rules.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <span>
#include <variant>

namespace tessera::runtime {

/// The tensors of one run: flat, contiguous, of equal length and on one device.
struct UpdateTensors {
  at::Tensor master; ///< float32 or float64; updated
  at::Tensor grad; ///< master's dtype, or bfloat16 or float16
  /// Master's dtype or bfloat16; updated. exp_avg of AdamW. An update uses the
  /// exact new moments and rounds what it stores.
  at::Tensor moment;
  at::Tensor moment_sq; ///< as moment; exp_avg_sq of AdamW and Adan
  /// bfloat16 or float16, or undefined: receives the new master, rounded to
  /// nearest even or, bfloat16 only, stochastically.
  at::Tensor low_precision;
  /// [] float64, or undefined for 1: the gradient is multiplied by it after the
  /// step's grad_scale, for a factor that a device computes.
  at::Tensor grad_factor;
  at::Tensor moment_diff; ///< as moment; exp_avg_diff of Adan
  at::Tensor previous_grad; ///< as moment; Adan only: after grad_scale

  /// The most state tensors that an update may have.
  static constexpr size_t kStates = kMaxStates;
  /// All state, in the order in which optimizers name it; what an optimizer
  /// does not have is undefined.
  std::array<at::Tensor*, kStates> states() {
    return {&moment, &moment_sq, &moment_diff, &previous_grad};
  }
  std::array<const at::Tensor*, kStates> states() const {
    return {&moment, &moment_sq, &moment_diff, &previous_grad};
  }
};

template <typename Steps>
struct OneOf;
template <typename... Steps>
struct OneOf<StepList<Steps...>> {
  using Step = std::variant<Steps...>;
};

/// One step of one of FusedSteps.
using UpdateStep = OneOf<FusedSteps>::Step;

inline StochasticRounding& rounding_of(UpdateStep& step) {
  return std::visit(
      [](auto& s) -> auto& { return s.rounding; }, step);
}

/// `grad` is always defined. State is what step.states() counts: none for SGD
/// without momentum.
struct UpdateSegment {
  UpdateTensors tensors;
  UpdateStep step;
};

/// Updates every run in place, by the rule of its step: see the headers of the
/// rules. All steps of a call are of one type.
/// @param before CPU only. If empty, updates are in place. Otherwise, for every
///   run, the master and moments from which the update starts, of the same
///   dtypes and sizes as the run's own; they do not change, and the previous
///   values of the run's own are overwritten. An undefined tensor starts from
///   the run's own values.
/// @return on CPU, whether every gradient was finite, before grad_scale; the
///   update has taken place in either case. On CUDA, true.
/// @throws tessera::Error on a mismatch of shape, dtype, device or layout, on
///   hyperparameters out of range, and for CUDA tensors when the CUDA backend
///   is not loaded. All runs of a call must have one dtype and device.
///
/// The tensors must not overlap. Autograd does not record the update. On CPU it
/// blocks; on CUDA it runs on the current stream and does not synchronize. Each
/// element is computed independently: the result depends neither on threads nor
/// on where a run begins.
bool update_segments_(
    std::span<const UpdateSegment> segments,
    std::span<const UpdateTensors> before = {});

} // namespace tessera::runtime
