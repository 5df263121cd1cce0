// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdanOptions`: Adan.

#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// Adan (arXiv:2208.06677, Alg. 1): Adam with Nesterov's momentum, from a
/// moment of the differences between successive gradients. As in the authors'
/// program, moments are bias-corrected, the first step of a parameter has no
/// difference, and betas are 1 minus those of the paper.
///
/// State: exp_avg, exp_avg_sq, exp_avg_diff and previous_grad, the gradient of
/// the step before as it was applied, after clipping. All four have
/// OptimizerOptions::moment_dtype.
struct AdanOptions {
  double beta1 = 0.98;
  double beta2 = 0.92;
  double beta3 = 0.99;
  double eps = 1e-8;
  /// False: weight decay is a proximal step, weights are divided by
  /// 1 + lr * weight_decay after the update. True: they are multiplied by
  /// 1 - lr * weight_decay before it, as with AdamW.
  bool no_prox = false;
};

const engine::Optimizer& optimizer_of(std::type_identity<AdanOptions>);

} // namespace tessera
