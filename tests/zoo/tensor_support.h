// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reference tensors and how near they must be met.

#include "tessera/runtime/io/safetensors.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tessera {

/// A tensor of a fixture; F32 or I64.
inline torch::Tensor fixture_tensor(
    const runtime::SafetensorsFile& file,
    const std::string& name) {
  const runtime::SafetensorsEntry& entry = file.at(name);
  torch::Tensor tensor = torch::empty(
      entry.shape,
      entry.dtype == runtime::SafetensorsDtype::kI64 ? torch::kInt64
                                                     : torch::kFloat32);
  std::memcpy(tensor.data_ptr(), entry.data.data(), entry.data.size());
  return tensor;
}

/// max|a - b| <= 1e-5 max(1, max|b|): fp32 sums in another order, over
/// some thousand terms and a dozen matrix products.
inline void expect_near(const torch::Tensor& a, const torch::Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes());
  const auto difference = (a - b).abs().max().item<double>();
  const double scale = std::max(1.0, b.abs().max().item<double>());
  EXPECT_LE(difference, 1e-5 * scale);
}

} // namespace tessera
