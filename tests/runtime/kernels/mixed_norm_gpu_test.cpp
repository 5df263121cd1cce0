// SPDX-License-Identifier: Apache-2.0
// LayerNorm, RMSNorm and GroupNorm with float32 parameters on CUDA, against
// float64.
#include "runtime/kernels/norm_cases.h"
#include "support/cuda_test.h"

#include <gtest/gtest.h>

namespace tessera::runtime::mixed_norm_gpu_test {

namespace {

class MixedNormGpu : public tests::CudaTest {};

} // namespace

TEST_F(MixedNormGpu, IsAsInFloat64) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool is_layer_norm : {true, false}) {
      // Heads, hidden states, an odd width, and few long rows; one pack a
      // thread, several, and rows just within registers and above.
      for (const auto& [rows, features] :
           {std::pair<int64_t, int64_t>{tests::gpu_size(70'001, 701), 64},
            {tests::gpu_size(513, 33), 4096},
            {33, 1030},
            {129, 8},
            {65, 264},
            {33, 1032},
            {65, 2056},
            {9, 8192},
            {9, 8200},
            {5, tests::gpu_size(100'003, 10'003)}}) {
        for (const bool has_weight : {true, false}) {
          norm_cases::check_mixed_norm(
              {.dtype = dtype,
               .is_layer_norm = is_layer_norm,
               .rows = rows,
               .features = features,
               .has_weight = has_weight,
               .has_bias = has_weight && is_layer_norm,
               .device = tests::cuda_device()});
        }
      }
    }
  }
}

TEST_F(MixedNormGpu, OfGroupsIsAsInFloat64) {
  auto cases = norm_cases::group_norm_cases();
  cases.push_back({{16, 64, 33, 31}, 8});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& which : cases) {
      norm_cases::check_mixed_group_norm(which, dtype, tests::cuda_device());
    }
  }
}

} // namespace tessera::runtime::mixed_norm_gpu_test
