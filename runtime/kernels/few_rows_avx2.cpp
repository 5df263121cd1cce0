// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/few_rows_loop.h"

#include <immintrin.h>

namespace tessera::runtime {

namespace {

struct FewRowsAvx2 {
  static constexpr int64_t kWidth = 8;
  __m256 value;

  static FewRowsAvx2 zero() {
    return {_mm256_setzero_ps()};
  }
  static FewRowsAvx2 load(const float* p) {
    return {_mm256_loadu_ps(p)};
  }
  static FewRowsAvx2 load(const float* p, int64_t count) {
    const __m256i lane_numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_maskload_ps(
        p,
        _mm256_cmpgt_epi32(
            _mm256_set1_epi32(static_cast<int>(count)), lane_numbers))};
  }
  void add_product(FewRowsAvx2 a, FewRowsAvx2 b) {
    value = _mm256_fmadd_ps(a.value, b.value, value);
  }
  float sum() const {
    const __m128 halves = _mm_add_ps(
        _mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    const __m128 pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
  }
};

} // namespace

void few_rows_avx2(const FewRows& all, int64_t begin, int64_t end) {
  few_rows_loop<FewRowsAvx2, 2>(all, begin, end);
}

} // namespace tessera::runtime
