// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/few_rows_loop.h"

#include <immintrin.h>

namespace tessera::runtime {

namespace {

struct FewRowsAvx512 {
  static constexpr int64_t kWidth = 16;
  __m512 value;

  static FewRowsAvx512 zero() {
    return {_mm512_setzero_ps()};
  }
  static FewRowsAvx512 load(const float* p) {
    return {_mm512_loadu_ps(p)};
  }
  static FewRowsAvx512 load(const float* p, int64_t count) {
    return {
        _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), p)};
  }
  void add_product(FewRowsAvx512 a, FewRowsAvx512 b) {
    value = _mm512_fmadd_ps(a.value, b.value, value);
  }
  float sum() const {
    return _mm512_reduce_add_ps(value);
  }
};

} // namespace

void few_rows_avx512(const FewRows& all, int64_t begin, int64_t end) {
  few_rows_loop<FewRowsAvx512, 4>(all, begin, end);
}

} // namespace tessera::runtime
