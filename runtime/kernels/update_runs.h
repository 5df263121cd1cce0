// SPDX-License-Identifier: Apache-2.0
#pragma once
// `adamw_runs_()`, `sgd_runs_()`, `lion_runs_()` and `adan_runs_()` update many
// runs of flat shards at once: on CUDA with one launch for some twenty runs, on
// CPU as one job for the threads of update_pool().

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/adan_shard.h"
#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/kernels/update_shard.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <span>

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
  static constexpr size_t kStates = 4;
  /// All state, in the order in which optimizers name it; what an optimizer
  /// does not have is undefined.
  std::array<at::Tensor*, kStates> states() {
    return {&moment, &moment_sq, &moment_diff, &previous_grad};
  }
  std::array<const at::Tensor*, kStates> states() const {
    return {&moment, &moment_sq, &moment_diff, &previous_grad};
  }
};

struct AdamWRun {
  UpdateTensors tensors;
  AdamWStep step;
};

/// `grad` is always defined; `moment` is undefined without momentum.
struct SgdRun {
  UpdateTensors tensors;
  SgdStep step;
};

struct LionRun {
  UpdateTensors tensors;
  LionStep step;
};

struct AdanRun {
  UpdateTensors tensors;
  AdanStep step;
};

/// As adamw_() for every run.
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
/// On CPU it blocks; on CUDA it runs on the current stream and does not
/// synchronize. Each element is computed independently: the result depends
/// neither on threads nor on where a run begins.
bool adamw_runs_(
    std::span<const AdamWRun> runs,
    std::span<const UpdateTensors> before = {});

/// torch::optim::SGD's step, with its operations and roundings:
///
///   g = grad * grad_scale + weight_decay * master
///   moment = momentum * moment + (1 - dampening) * g   (step 1: moment = g)
///   d = nesterov ? g + momentum * moment : moment      (momentum 0: d = g)
///   master -= lr * d
///
/// Otherwise as adamw_runs_().
bool sgd_runs_(
    std::span<const SgdRun> runs,
    std::span<const UpdateTensors> before = {});

/// Lion (arXiv:2302.06675, Alg. 2):
///
///   d = sign(beta1 * moment + (1 - beta1) * g)
///   moment = beta2 * moment + (1 - beta2) * g
///   master = (1 - lr * weight_decay) * master - lr * d
///
/// Otherwise as adamw_runs_().
bool lion_runs_(
    std::span<const LionRun> runs,
    std::span<const UpdateTensors> before = {});

/// Adan (arXiv:2208.06677, Alg. 1), with the bias corrections and the betas of
/// the authors' program, which are 1 minus those of the paper:
///
///   diff = g - previous_grad                         (step 1: 0)
///   moment = beta1 * moment + (1 - beta1) * g
///   moment_diff = beta2 * moment_diff + (1 - beta2) * diff
///   a = g + beta2 * diff
///   moment_sq = beta3 * moment_sq + (1 - beta3) * a^2
///   d = (moment / (1 - beta1^step)
///        + beta2 * moment_diff / (1 - beta2^step))
///       / (sqrt(moment_sq / (1 - beta3^step)) + eps)
///   master = (master - lr * d) / (1 + lr * weight_decay)
///   (no_prox: master = (1 - lr * weight_decay) * master - lr * d)
///   previous_grad = g
///
/// Otherwise as adamw_runs_().
bool adan_runs_(
    std::span<const AdanRun> runs,
    std::span<const UpdateTensors> before = {});

} // namespace tessera::runtime
