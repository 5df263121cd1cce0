// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of LayerNorm, RMSNorm and GroupNorm, compiled as C++
// (support/cuda_shim).
#include "runtime/kernels/norm_cases.h"
#include "support/cuda_shim/guarded_memory.h"
#include "support/cuda_shim/kernel_run.h"
#include "support/cuda_shim/vast_array.h"
#include "tessera/runtime/kernels/norm_cuda.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::runtime::cuda_shim_norm_test {

namespace {

using norm_cases::is_rounded;
using norm_cases::reference_norm;
using norm_cases::wide_leaf;
using tests::cuda_shim::dim3;
using tests::cuda_shim::GuardedTensors;
using tests::cuda_shim::kernel_options;
using tests::cuda_shim::OptionsScope;
using tests::cuda_shim::VastArray;

constexpr float kEps = 1e-5F;

LowPrecision format_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? LowPrecision::kFloat16 : LowPrecision::kBFloat16;
}

/// A copy whose first element is `offset` elements behind aligned memory.
at::Tensor at_offset(const at::Tensor& t, int64_t offset) {
  if (!t.defined()) {
    return t;
  }
  return at::empty({t.numel() + offset}, t.options())
      .narrow(0, offset, t.numel())
      .copy_(t.flatten())
      .view(t.sizes());
}

const float* data_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

/// Within two roundings of numbers of this size.
bool is_near(const at::Tensor& found, const at::Tensor& expected) {
  const double unit = found.scalar_type() == at::kHalf ? 0x1p-10 : 0x1p-7;
  return ((found - expected).abs().max() <= unit * expected.abs().max())
      .item<bool>();
}

/// [rows, features] through the kernels.
struct ShimNorm {
  at::Tensor x;
  at::Tensor weight;
  at::Tensor bias;
  bool centered;
  int64_t parts = 3;
  int64_t groups = 1;
  int64_t spatial = 1;
  at::Tensor y = at::empty_like(x);
  at::Tensor mean = at::full({x.size(0)}, NAN);
  at::Tensor rstd = at::full({x.size(0)}, NAN);
  at::Tensor gradient_x = at::empty_like(x);
  at::Tensor gradient_weight =
      at::full({parts, groups* x.size(1) / spatial}, NAN);
  at::Tensor gradient_bias = at::full_like(gradient_weight, NAN);

  NormRows rows() const {
    return {
        x.const_data_ptr(),
        format_of(x.scalar_type()),
        data_of(weight),
        x.size(0),
        x.size(1),
        centered,
        groups,
        spatial};
  }
  void forward() {
    EXPECT_EQ(
        launch_norm(
            {rows(),
             data_of(bias),
             kEps,
             y.mutable_data_ptr(),
             centered ? mean.mutable_data_ptr<float>() : nullptr,
             rstd.mutable_data_ptr<float>()},
            nullptr),
        cudaSuccess);
  }
  void backward(const at::Tensor& gradient) {
    EXPECT_EQ(
        launch_norm_backward(
            {rows(),
             gradient.const_data_ptr(),
             centered ? mean.const_data_ptr<float>() : nullptr,
             rstd.const_data_ptr<float>(),
             gradient_x.mutable_data_ptr(),
             gradient_weight.mutable_data_ptr<float>(),
             gradient_bias.mutable_data_ptr<float>(),
             parts},
            nullptr),
        cudaSuccess);
  }
};

class CudaShimNorm
    : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool>> {
 protected:
  at::ScalarType dtype() const {
    return std::get<0>(GetParam());
  }
  bool is_layer_norm() const {
    return std::get<1>(GetParam());
  }
  at::Tensor random(at::IntArrayRef sizes) const {
    return (at::randn(sizes) * 2 + 1).to(dtype());
  }

  /// @param columns of a block of the parameters' gradients.
  void check_elements_past_32_bits(int64_t features, int64_t columns) const {
    constexpr int64_t kBlocks = int64_t{1} << 20;
    constexpr int64_t kRows = kBlocks + 5;
    constexpr int64_t kRow = kRows - 1;
    constexpr int64_t kPerPart = (kRows + 65534) / 65535;
    const int64_t parts = 65535;
    VastArray<uint16_t> x(kRows * features);
    VastArray<uint16_t> y(kRows * features);
    VastArray<uint16_t> gradient(kRows * features);
    VastArray<uint16_t> gradient_x(kRows * features);
    VastArray<float> mean(kRows);
    VastArray<float> rstd(kRows);
    VastArray<float> gradient_weight(parts * features);
    ShimNorm small{random({1, features}), {}, {}, is_layer_norm()};
    const at::Tensor small_gradient = random({1, features});
    small.forward();
    small.backward(small_gradient);
    const auto row_of = [&](auto& array) {
      return array.elements(kRow * features, features, dtype());
    };
    row_of(x).copy_(small.x[0]);
    row_of(gradient).copy_(small_gradient[0]);
    const NormRows rows{
        x.data(),
        format_of(dtype()),
        nullptr,
        kRows,
        features,
        is_layer_norm()};
    // The second turn of block 4 is the last row.
    kernel_options().runs_block = [=](const dim3& block) {
      return tests::cuda_shim::kernel.grid.y == 1
                 ? block.x == 4
                 : block.x == features / columns && block.y == kRow / kPerPart;
    };
    EXPECT_EQ(
        launch_norm(
            {rows, nullptr, kEps, y.data(), mean.data(), rstd.data()}, nullptr),
        cudaSuccess);
    EXPECT_TRUE(torch::equal(row_of(y), small.y[0]));
    EXPECT_EQ(rstd.data()[kRow], small.rstd[0].item<float>());
    EXPECT_EQ(
        launch_norm_backward(
            {rows,
             gradient.data(),
             mean.data(),
             rstd.data(),
             gradient_x.data(),
             gradient_weight.data(),
             nullptr,
             parts},
            nullptr),
        cudaSuccess);
    EXPECT_TRUE(torch::equal(row_of(gradient_x), small.gradient_x[0]));
    // The last four columns are the block's; the part's other rows are zeros.
    const at::Tensor weights = gradient_weight.elements(
        kRow / kPerPart * features + features - 4, 4, at::kFloat);
    EXPECT_TRUE(torch::equal(
        weights, small.gradient_weight[0].narrow(0, features - 4, 4)));
  }

  OptionsScope options_;
  GuardedTensors guarded_;

 private:
  void SetUp() override {
    torch::manual_seed(3);
  }
};

} // namespace

TEST_P(CudaShimNorm, IsAsInFloat64AndInLibTorch) {
  // Element by element; in packs of 4; and in registers: some rows a warp, one
  // pack a thread, 2, 3 and 4, the last one of all threads and of some, and of
  // 2 warps and of 8; and one pack more than fits.
  for (const int64_t features :
       {3,
        7,
        8,
        64,
        100,
        256,
        264,
        640,
        1024,
        1030,
        1032,
        1500,
        2048,
        2052,
        8192,
        8200}) {
    for (const int64_t offset : {0, 1}) {
      for (const bool has_parameters : {true, false}) {
        if (features > 1100 && (offset != 0 || !has_parameters)) {
          continue; // as of fewer features
        }
        const at::Tensor weight =
            has_parameters ? at::rand({features}) + 0.5 : at::Tensor();
        const at::Tensor bias = has_parameters && is_layer_norm()
                                    ? at::randn({features})
                                    : at::Tensor();
        ShimNorm shim{
            at_offset(random({7, features}), offset),
            weight,
            bias,
            is_layer_norm()};
        shim.forward();
        const at::Tensor gradient = random({7, features});
        shim.backward(gradient);

        const std::vector<at::Tensor> wide = {
            wide_leaf(shim.x), wide_leaf(weight), wide_leaf(bias)};
        const at::Tensor exact =
            reference_norm(wide[0], wide[1], wide[2], kEps, is_layer_norm());
        exact.backward(gradient.to(at::kDouble));
        const at::Tensor cpu_x = shim.x.detach().clone().requires_grad_();
        const std::string where =
            std::to_string(features) + " features at " + std::to_string(offset);
        EXPECT_TRUE(is_rounded(shim.y, exact)) << where;
        EXPECT_TRUE(is_rounded(shim.gradient_x, wide[0].grad())) << where;
        // LibTorch has such a kernel on the CPU only, for LayerNorm; it adds up
        // the parameters' gradients in 16 bits.
        if (is_layer_norm() && has_parameters) {
          const at::Tensor cpu =
              at::layer_norm(cpu_x, {features}, weight, bias, kEps);
          cpu.backward(gradient);
          EXPECT_TRUE(is_near(shim.y, cpu)) << where;
          EXPECT_TRUE(is_near(shim.gradient_x, cpu_x.grad())) << where;
        }
        if (has_parameters) {
          EXPECT_TRUE(is_rounded(shim.gradient_weight.sum({0}), wide[1].grad()))
              << where;
        }
        if (bias.defined()) {
          EXPECT_TRUE(is_rounded(shim.gradient_bias.sum({0}), wide[2].grad()))
              << where;
        }
      }
    }
  }
}

TEST_P(CudaShimNorm, OfGroupsIsAsInFloat64AndOnTheCpu) {
  if (!is_layer_norm()) {
    return; // no norm of groups is not centered
  }
  for (const auto& [sizes, groups] : norm_cases::group_norm_cases()) {
    for (const int64_t offset : {0, 1}) {
      const int64_t channels = sizes[1];
      const at::Tensor x = random(sizes);
      const at::Tensor weight = at::rand({channels}) + 0.5;
      const at::Tensor bias = at::randn({channels});
      const int64_t spatial = x.numel() / (sizes[0] * channels);
      ShimNorm shim{
          .x = at_offset(x.view({sizes[0] * groups, -1}), offset),
          .weight = weight,
          .bias = bias,
          .centered = true,
          .groups = groups,
          .spatial = spatial};
      shim.forward();
      const at::Tensor gradient = random(sizes);
      shim.backward(gradient);

      const std::vector<at::Tensor> wide = {
          wide_leaf(x), wide_leaf(weight), wide_leaf(bias)};
      const at::Tensor exact =
          at::group_norm(wide[0], groups, wide[1], wide[2], kEps);
      exact.backward(gradient.to(at::kDouble));
      const auto where = ::testing::Message() << x.sizes() << " at " << offset;
      EXPECT_TRUE(is_rounded(shim.y.view(sizes), exact)) << where;
      EXPECT_TRUE(is_rounded(shim.gradient_x.view(sizes), wide[0].grad()))
          << where;
      EXPECT_TRUE(is_rounded(shim.gradient_weight.sum({0}), wide[1].grad()))
          << where;
      EXPECT_TRUE(is_rounded(shim.gradient_bias.sum({0}), wide[2].grad()))
          << where;
      const at::Tensor cpu_x = x.clone().requires_grad_();
      const at::Tensor cpu =
          mixed_group_norm(cpu_x, groups, weight, bias, kEps);
      cpu.backward(gradient);
      EXPECT_TRUE(is_near(shim.y.view(sizes), cpu)) << where;
      EXPECT_TRUE(is_near(shim.gradient_x.view(sizes), cpu_x.grad())) << where;
    }
  }
}

TEST_P(CudaShimNorm, IsTheSameWhereAnArrayIsNotAligned) {
  // In registers, and in packs of 4.
  for (const int64_t features : {264, 260}) {
    const at::Tensor x = random({3, features});
    const at::Tensor gradient = random({3, features});
    const at::Tensor weight = at::rand({features}) + 0.5;
    const at::Tensor bias = at::randn({features});
    ShimNorm aligned{x, weight, bias, is_layer_norm()};
    aligned.forward();
    aligned.backward(gradient);
    for (int which = 0; which < 6; ++which) {
      const auto moved = [&](const at::Tensor& t, int number) {
        return at_offset(t, number == which ? 1 : 0);
      };
      ShimNorm shim{
          .x = moved(x, 0),
          .weight = moved(weight, 1),
          .bias = moved(bias, 2),
          .centered = is_layer_norm(),
          .y = moved(x, 3),
          .gradient_x = moved(x, 4)};
      shim.forward();
      shim.backward(moved(gradient, 5));
      const auto where = ::testing::Message()
                         << "array " << which << " of " << features;
      EXPECT_TRUE(is_near(shim.y, aligned.y)) << where;
      EXPECT_TRUE(is_near(shim.gradient_x, aligned.gradient_x)) << where;
      EXPECT_TRUE(at::allclose(
          shim.gradient_weight.sum({0}),
          aligned.gradient_weight.sum({0}),
          1e-5,
          1e-5))
          << where;
    }
  }
}

TEST_P(CudaShimNorm, OfOneFeatureIsItsSign) {
  const at::Tensor x = random({40, 1});
  const at::Tensor weight = at::full({1}, 2.0F);
  const at::Tensor bias = is_layer_norm() ? at::full({1}, 0.5F) : at::Tensor();
  ShimNorm shim{x, weight, bias, is_layer_norm()};
  shim.forward();
  const at::Tensor gradient = random({40, 1});
  shim.backward(gradient);
  const at::Tensor sign = is_layer_norm()
                              ? at::zeros({40, 1}) // less its mean
                              : x.to(at::kFloat) * shim.rstd.view({40, 1});
  EXPECT_TRUE(
      at::equal(shim.y, (sign * 2 + (is_layer_norm() ? 0.5 : 0)).to(dtype())));
  // Some roundings of products that cancel, what eps adds, and the least number
  // of float16.
  const at::Tensor scale = 2 * gradient.to(at::kFloat).abs();
  const at::Tensor rstd = shim.rstd.view({40, 1});
  const at::Tensor bound =
      scale * (3e-7 * rstd + (is_layer_norm() ? 0 : kEps) * rstd.pow(3)) *
          1.02 +
      0x1p-24;
  EXPECT_TRUE(
      (shim.gradient_x.to(at::kFloat).abs() <= bound).all().item<bool>());
  EXPECT_TRUE(at::allclose(
      shim.gradient_weight.sum({0}),
      (gradient.to(at::kFloat) * sign).sum({0}),
      1e-5,
      1e-5));
  EXPECT_TRUE(at::allclose(
      shim.gradient_bias.sum({0}), gradient.to(at::kFloat).sum({0}), 1e-5));
}

TEST_P(CudaShimNorm, ALargeMeanDoesNotCancelTheVariance) {
  const at::Tensor x = (at::randn({2, 256}) + 200).to(dtype());
  ShimNorm shim{x, {}, {}, is_layer_norm()};
  shim.forward();
  EXPECT_TRUE(is_rounded(
      shim.y,
      reference_norm(
          x.to(at::kDouble), {}, {}, kEps, /*centered=*/is_layer_norm())));
}

TEST_P(CudaShimNorm, PartsWithoutRowsAreZeros) {
  ShimNorm shim{random({4, 40}), {}, {}, is_layer_norm(), /*parts=*/6};
  shim.forward();
  shim.backward(at::ones({4, 40}, dtype()));
  EXPECT_TRUE(torch::equal(
      shim.gradient_bias.sum({0}), at::full({40}, 4.0, at::kFloat)));
  EXPECT_TRUE(torch::equal(
      shim.gradient_weight.slice(0, 4), at::zeros({2, 40}, at::kFloat)));
}

TEST(CudaShimNormParts, FillTheDevice) {
  const auto parts = [](int64_t rows, int64_t features, int64_t groups = 1) {
    return norm_backward_parts(
        {.rows = rows, .features = features, .groups = groups});
  };
  EXPECT_EQ(parts(0, 64), 1);
  EXPECT_EQ(parts(100, 64), 3); // of 32 rows or more
  EXPECT_EQ(parts(8192, 2048), 64); // of 8 blocks
  EXPECT_EQ(parts(8192, 2056), 63);
  EXPECT_EQ(parts(8192, int64_t{1} << 20), 1);
  EXPECT_EQ(parts(int64_t{1} << 40, 64), 256);
  EXPECT_EQ(parts(8192, 2048, 2), 128); // a block for each parameter
}

TEST_P(CudaShimNorm, ReachesElementsPast32Bits) {
  // More rows than blocks, and more elements than 32 bits can count: of rows in
  // packs of 4, and in registers.
  for (const auto& [features, columns] :
       {std::pair<int64_t, int64_t>{2052, 128}, {2056, 256}}) {
    kernel_options() = {};
    check_elements_past_32_bits(features, columns);
  }
}

TEST_P(CudaShimNorm, RowsOfAPartOfAWarpPastTheGrid) {
  // 4 threads a row, 32 rows a block: its second turn has the last 5.
  constexpr int64_t kFeatures = 32;
  constexpr int64_t kFirst = int64_t{32} << 20;
  constexpr int64_t kRows = kFirst + 5;
  VastArray<uint16_t> x(kRows * kFeatures);
  VastArray<uint16_t> y(kRows * kFeatures);
  VastArray<uint16_t> gradient_x(kRows * kFeatures);
  VastArray<float> mean(kRows);
  VastArray<float> rstd(kRows);
  ShimNorm few{random({5, kFeatures}), {}, {}, is_layer_norm()};
  few.forward();
  few.backward(few.x);
  const auto last_of = [&](auto& array) {
    return array.elements(kFirst * kFeatures, 5 * kFeatures, dtype())
        .view({5, kFeatures});
  };
  last_of(x).copy_(few.x);
  kernel_options().runs_block = [](const dim3& block) { return block.x == 0; };
  const NormRows rows{
      x.data(), format_of(dtype()), nullptr, kRows, kFeatures, is_layer_norm()};
  EXPECT_EQ(
      launch_norm(
          {rows, nullptr, kEps, y.data(), mean.data(), rstd.data()}, nullptr),
      cudaSuccess);
  EXPECT_EQ(
      launch_norm_backward(
          {.in = rows,
           .gradient = x.data(),
           .mean = mean.data(),
           .rstd = rstd.data(),
           .gradient_x = gradient_x.data(),
           .parts = 1},
          nullptr),
      cudaSuccess);
  EXPECT_TRUE(torch::equal(last_of(y), few.y));
  EXPECT_TRUE(torch::equal(last_of(gradient_x), few.gradient_x));
  EXPECT_EQ(rstd.data()[kRows - 1], few.rstd[4].item<float>());
}

TEST_P(CudaShimNorm, RowsOfOneFeaturePastTheGrid) {
  constexpr int64_t kBlocks = int64_t{1} << 20;
  const at::Tensor weight = at::full({1}, 2.0F);
  ShimNorm shim{random({kBlocks + 1, 1}), weight, {}, is_layer_norm()};
  ShimNorm few{shim.x[0].view({1, 1}), weight, {}, is_layer_norm()};
  ShimNorm last{shim.x[kBlocks].view({1, 1}), weight, {}, is_layer_norm()};
  // Its second turn is the last row.
  kernel_options().runs_block = [](const dim3& block) { return block.x == 0; };
  shim.y.fill_(7);
  shim.forward();
  few.forward();
  last.forward();
  EXPECT_TRUE(at::equal(shim.y[0], few.y[0]));
  EXPECT_TRUE(at::equal(shim.y[kBlocks], last.y[0]));
  EXPECT_TRUE(at::equal(shim.rstd[kBlocks], last.rstd[0]));
  EXPECT_EQ((shim.y == 7).sum().item<int64_t>(), kBlocks - 1);
  const at::Tensor gradient = at::full({kBlocks + 1, 1}, 0.5, dtype());
  shim.gradient_x.fill_(7);
  shim.mean.nan_to_num_();
  shim.rstd.nan_to_num_();
  shim.backward(gradient);
  last.backward(gradient.narrow(0, 0, 1));
  EXPECT_TRUE(at::equal(shim.gradient_x[kBlocks], last.gradient_x[0]));
  EXPECT_EQ((shim.gradient_x == 7).sum().item<int64_t>(), kBlocks - 1);
  EXPECT_TRUE(at::isfinite(shim.gradient_bias).all().item<bool>());
  EXPECT_EQ(
      shim.gradient_bias.sum().item<float>(),
      0.5F * static_cast<float>(kBlocks + 1));
}

TEST_P(CudaShimNorm, ErrorsOfLaunchesAreReturned) {
  ShimNorm shim{random({2, 8}), {}, {}, is_layer_norm()};
  kernel_options().failing_launch = 1;
  EXPECT_NE(
      launch_norm(
          {shim.rows(),
           nullptr,
           kEps,
           shim.y.mutable_data_ptr(),
           shim.mean.mutable_data_ptr<float>(),
           shim.rstd.mutable_data_ptr<float>()},
          nullptr),
      cudaSuccess);
  kernel_options().failing_launch = 0;
  shim.forward();
  for (const int failing : {1, 2}) {
    kernel_options().launches = 0;
    kernel_options().failing_launch = failing;
    EXPECT_NE(
        launch_norm_backward(
            {shim.rows(),
             shim.x.const_data_ptr(),
             shim.mean.const_data_ptr<float>(),
             shim.rstd.const_data_ptr<float>(),
             shim.gradient_x.mutable_data_ptr(),
             shim.gradient_weight.mutable_data_ptr<float>(),
             nullptr,
             shim.parts},
            nullptr),
        cudaSuccess);
    EXPECT_EQ(kernel_options().launches, failing);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    CudaShimNorm,
    ::testing::Combine(
        ::testing::Values(at::kBFloat16, at::kHalf),
        ::testing::Bool()),
    [](const auto& info) {
      return std::string(c10::toString(std::get<0>(info.param))) +
             (std::get<1>(info.param) ? "LayerNorm" : "RmsNorm");
    });

} // namespace tessera::runtime::cuda_shim_norm_test
