// SPDX-License-Identifier: Apache-2.0
// LayerNorm, RMSNorm and GroupNorm with float32 parameters on CUDA, against
// float64.
#include "runtime/kernels/norm_cases.h"
#include "tessera/runtime/core/cuda_backend.h"

#include <gtest/gtest.h>

namespace tessera::runtime::mixed_norm_gpu_test {

TEST(MixedNormGpu, IsAsInFloat64) {
  if (!load_cuda_backend().loaded) {
    GTEST_SKIP() << "no CUDA device";
  }
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool is_layer_norm : {true, false}) {
      // Heads, hidden states, an odd width, and few long rows.
      for (const auto& [rows, features] :
           {std::pair<int64_t, int64_t>{70'001, 64},
            {513, 4096},
            {33, 1030},
            {5, 100'003}}) {
        for (const bool has_weight : {true, false}) {
          norm_cases::check_mixed_norm(
              {.dtype = dtype,
               .is_layer_norm = is_layer_norm,
               .rows = rows,
               .features = features,
               .has_weight = has_weight,
               .has_bias = has_weight && is_layer_norm,
               .device = at::Device(at::kCUDA, 0)});
        }
      }
    }
  }
}

TEST(MixedNormGpu, OfGroupsIsAsInFloat64) {
  if (!load_cuda_backend().loaded) {
    GTEST_SKIP() << "no CUDA device";
  }
  auto cases = norm_cases::group_norm_cases();
  cases.push_back({{16, 64, 33, 31}, 8});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& which : cases) {
      norm_cases::check_mixed_group_norm(
          which, dtype, at::Device(at::kCUDA, 0));
    }
  }
}

} // namespace tessera::runtime::mixed_norm_gpu_test
