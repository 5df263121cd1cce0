// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/newton_schulz.h"

#include <ATen/ops/addmm.h>

namespace tessera::engine {

at::Tensor orthogonalize(const at::Tensor& matrix, int steps) {
  // The coefficients maximize the slope at zero, so that small singular values
  // grow fast.
  constexpr double a = 3.4445;
  constexpr double b = -4.7750;
  constexpr double c = 2.0315;
  constexpr double eps = 1e-7; // a zero matrix stays zero
  // The Gram matrix of the smaller side is cheaper.
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t().contiguous() : matrix.contiguous();
  x = x / (x.norm() + eps);
  for (int i = 0; i < steps; ++i) {
    const at::Tensor gram = x.mm(x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, b, c);
    x = at::addmm(x, polynomial, x, a);
  }
  return tall ? x.t() : x;
}

} // namespace tessera::engine
