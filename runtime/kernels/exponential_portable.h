// SPDX-License-Identifier: Apache-2.0
#pragma once
// `exponential()` and `larger()` of ScalarVec, see exponential.h.

#include "tessera/runtime/kernels/vec_scalar.h"

#include <cmath>

namespace tessera::runtime {

namespace {

/// b where a is NaN.
inline ScalarVec<float> larger(ScalarVec<float> a, ScalarVec<float> b) {
  return {a.value > b.value ? a.value : b.value};
}

inline ScalarVec<float> exponential(ScalarVec<float> x) {
  return {std::exp(x.value)};
}

} // namespace

} // namespace tessera::runtime
