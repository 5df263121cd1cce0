// SPDX-License-Identifier: Apache-2.0
// AdamW in plain C++, for any processor and for float64. std::fma is one
// rounding with or without the instruction.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/adamw_kernel.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

namespace tessera {

namespace {

template <typename T>
struct ScalarVec {
  using Scalar = T;
  static constexpr int64_t kWidth = 1;
  T value;

  static ScalarVec broadcast(T value) {
    return {value};
  }
  static ScalarVec load(const T* p, int64_t = 1) {
    return {*p};
  }
  void store(T* p, int64_t = 1) const {
    *p = value;
  }
  void store_bfloat16(uint16_t* p, int64_t = 1) const {
    *p = c10::detail::round_to_nearest_even(static_cast<float>(value));
  }
  void store_float16(uint16_t* p, int64_t = 1) const {
    *p = c10::Half(static_cast<float>(value)).x;
  }
  friend ScalarVec operator+(ScalarVec a, ScalarVec b) {
    return {a.value + b.value};
  }
  friend ScalarVec operator*(ScalarVec a, ScalarVec b) {
    return {a.value * b.value};
  }
  friend ScalarVec operator/(ScalarVec a, ScalarVec b) {
    return {a.value / b.value};
  }
  friend ScalarVec fma(ScalarVec a, ScalarVec b, ScalarVec c) {
    return {std::fma(a.value, b.value, c.value)};
  }
  friend ScalarVec sqrt(ScalarVec a) {
    return {std::sqrt(a.value)};
  }
};

} // namespace

AdamWKernel<float> adamw_portable_float() {
  return detail::AdamWLoop<ScalarVec<float>>::kernel();
}

AdamWKernel<double> adamw_portable_double() {
  return detail::AdamWLoop<ScalarVec<double>>::kernel();
}

} // namespace tessera
