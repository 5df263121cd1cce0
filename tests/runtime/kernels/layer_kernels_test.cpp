// SPDX-License-Identifier: Apache-2.0
// The operators of layers on the CPU against float64, and their CUDA kernels,
// compiled as C++ (support/cuda_shim), against LibTorch's operators.
#include "tessera/runtime/kernels/layer_kernels.h"

#include "support/cuda_shim/kernel_run.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/gated_activation.h"
#include "tessera/runtime/kernels/layer_cuda.h"
#include "tessera/runtime/kernels/rotary_heads.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace tessera::runtime::layer_kernels_test {

namespace {

using tests::run_ranks;
using tests::cuda_shim::dim3;
using tests::cuda_shim::kernel_options;
using tests::cuda_shim::OptionsScope;

constexpr GateFunction kFunctions[] = {
    GateFunction::kSilu,
    GateFunction::kGelu,
    GateFunction::kTanhGelu};
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

at::Tensor wide_leaf(const at::Tensor& x) {
  return x.detach().to(at::kDouble).requires_grad_();
}

/// One rounding to the dtype, and what float32 computes less precisely than
/// float64, relative to the largest number.
void expect_rounded(const at::Tensor& found, const at::Tensor& exact) {
  ASSERT_TRUE(found.defined());
  const double unit = found.scalar_type() == at::kBFloat16 ? 0x1p-8
                      : found.scalar_type() == at::kHalf   ? 0x1p-11
                                                           : 0x1p-24;
  ASSERT_EQ(found.sizes(), exact.sizes());
  if (found.numel() == 0) {
    return;
  }
  const at::Tensor bound = unit * exact.abs() +
                           5e-7 * exact.abs().max().clamp_min(0.01) +
                           (found.scalar_type() == at::kHalf ? 3.1e-8 : 0);
  EXPECT_TRUE(
      ((found.to(at::kDouble) - exact).abs() <= bound).all().item<bool>())
      << found.sizes() << " of " << found.scalar_type() << ": off by "
      << (found.to(at::kDouble) - exact).abs().max().item<double>();
}

at::Tensor gated_reference(
    const at::Tensor& gate,
    const at::Tensor& up,
    GateFunction function) {
  switch (function) {
    case GateFunction::kSilu:
      return gate * at::sigmoid(gate) * up;
    case GateFunction::kGelu:
      return at::gelu(gate) * up;
    case GateFunction::kTanhGelu:
      return at::gelu(gate, "tanh") * up;
  }
  return {};
}

void check_gated(
    const at::Tensor& gate,
    const at::Tensor& up,
    GateFunction function) {
  const at::Tensor wide_gate = wide_leaf(gate);
  const at::Tensor wide_up = wide_leaf(up);
  const at::Tensor y = gated_activation(gate, up, function);
  const at::Tensor exact = gated_reference(wide_gate, wide_up, function);
  const at::Tensor gradient = at::randn(gate.sizes()).to(gate.scalar_type());
  y.backward(gradient);
  exact.backward(gradient.to(at::kDouble));
  EXPECT_EQ(y.scalar_type(), gate.scalar_type());
  expect_rounded(y, exact);
  expect_rounded(gate.grad(), wide_gate.grad());
  expect_rounded(up.grad(), wide_up.grad());
}

at::Tensor rotary_reference(
    const at::Tensor& x,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    bool adjacent) {
  const int64_t half = cosines.size(3);
  const at::Tensor cosine = cosines.to(at::kDouble);
  const at::Tensor sine = sines.to(at::kDouble);
  std::vector<at::Tensor> features;
  for (int64_t i = 0; i < x.size(3); ++i) {
    features.push_back(x.select(3, i));
  }
  const auto all = features;
  for (int64_t i = 0; i < half; ++i) {
    const auto a = static_cast<size_t>(adjacent ? 2 * i : i);
    const auto b = static_cast<size_t>(adjacent ? 2 * i + 1 : i + half);
    const at::Tensor c = cosine.select(3, i);
    const at::Tensor s = sine.select(3, i);
    features[a] = all[a] * c - all[b] * s;
    features[b] = all[b] * c + all[a] * s;
  }
  return at::stack(features, 3);
}

struct RotaryCase {
  int64_t batch = 2;
  int64_t heads = 3;
  int64_t key_heads = 1;
  int64_t tokens = 5;
  int64_t half = 3;
  int64_t features = 7;
  bool own_tables = true; ///< of each example
};

void check_rotary(const RotaryCase& c, at::ScalarType dtype, bool adjacent) {
  const auto heads_of = [&](int64_t heads) {
    // As projections give them: a token's heads follow each other.
    return at::randn({c.batch, c.tokens, heads, c.features})
        .to(dtype)
        .requires_grad_();
  };
  const at::Tensor query = heads_of(c.heads);
  const at::Tensor key = heads_of(c.key_heads);
  const at::Tensor angles =
      at::randn({c.own_tables ? c.batch : 1, 1, c.tokens, c.half}) * 3;
  const at::Tensor cosines = angles.cos().to(dtype);
  const at::Tensor sines = angles.sin().to(dtype);
  const auto [rotated_query, rotated_key] = rotate_heads(
      query.transpose(1, 2), key.transpose(1, 2), cosines, sines, adjacent);
  const at::Tensor wide_query = wide_leaf(query);
  const at::Tensor wide_key = wide_leaf(key);
  const at::Tensor exact_query =
      rotary_reference(wide_query.transpose(1, 2), cosines, sines, adjacent);
  const at::Tensor exact_key =
      rotary_reference(wide_key.transpose(1, 2), cosines, sines, adjacent);
  expect_rounded(rotated_query, exact_query);
  expect_rounded(rotated_key, exact_key);
  const at::Tensor from_query = at::randn(rotated_query.sizes()).to(dtype);
  const at::Tensor from_key = at::randn(rotated_key.sizes()).to(dtype);
  torch::autograd::backward(
      {rotated_query, rotated_key}, {from_query, from_key});
  torch::autograd::backward(
      {exact_query, exact_key},
      {from_query.to(at::kDouble), from_key.to(at::kDouble)});
  expect_rounded(query.grad(), wide_query.grad());
  expect_rounded(key.grad(), wide_key.grad());
}

LayerKernels shim_layer_kernels() {
  return {
      .gated =
          [](const GatedRows& rows) {
            EXPECT_EQ(launch_gated(rows, nullptr), cudaSuccess);
          },
      .gated_backward =
          [](const GatedRows& rows) {
            EXPECT_EQ(launch_gated_backward(rows, nullptr), cudaSuccess);
          },
      .rotate =
          [](const RotaryHeads& heads) {
            EXPECT_EQ(launch_rotary(heads, nullptr), cudaSuccess);
          }};
}

/// With the CPU as the kernels' device, in a process of its own.
void with_shim(const std::function<void()>& body) {
  run_ranks(1, [&](World&) {
    replace_cuda_backend({.loaded = true, .device_type = at::kCPU});
    const OptionsScope options;
    register_layer_kernels(shim_layer_kernels());
    body();
  });
}

} // namespace

TEST(GatedActivation, IsAsInFloat64) {
  torch::manual_seed(3);
  for (const GateFunction function : kFunctions) {
    for (const at::ScalarType dtype : kTypes) {
      for (const auto& sizes : std::vector<std::vector<int64_t>>{
               {1}, {3, 7}, {2, 5, 33}, {0, 4}, {257, 131}}) {
        check_gated(
            (at::randn(sizes) * 3).to(dtype).requires_grad_(),
            at::randn(sizes).to(dtype).requires_grad_(),
            function);
      }
    }
  }
}

TEST(GatedActivation, TakesExtremeValues) {
  torch::manual_seed(3);
  const at::Tensor values = at::tensor(
      {-1e4F,
       -104.0F,
       -90.0F,
       -60.0F,
       -20.0F,
       -5.7F,
       -4.0F,
       -1e-30F,
       0.0F,
       1e-30F,
       1e-3F,
       4.0F,
       5.7F,
       20.0F,
       88.0F,
       90.0F,
       1e4F});
  for (const GateFunction function : kFunctions) {
    for (const at::ScalarType dtype : kTypes) {
      for (const at::Tensor& value : values.unbind()) {
        check_gated(
            at::full({17}, value.item<float>()).to(dtype).requires_grad_(),
            at::randn({17}).to(dtype).requires_grad_(),
            function);
      }
    }
    const at::Tensor nan =
        at::full({19}, std::numeric_limits<float>::quiet_NaN());
    const at::Tensor ones = at::ones({19});
    EXPECT_TRUE(
        at::isnan(gated_activation(nan, ones, function)).all().item<bool>());
    EXPECT_TRUE(
        at::isnan(gated_activation(
                      nan.to(at::kBFloat16), ones.to(at::kBFloat16), function))
            .all()
            .item<bool>());
  }
}

TEST(GatedActivation, IsTwiceDifferentiable) {
  torch::manual_seed(3);
  for (const GateFunction function : kFunctions) {
    const at::Tensor gate = at::randn({5, 3}).requires_grad_();
    const at::Tensor up = at::randn({5, 3}).requires_grad_();
    const auto penalty = [&](const at::Tensor& g,
                             const at::Tensor& u,
                             const at::Tensor& y) {
      const auto gradients = torch::autograd::grad(
          {y.square().sum()}, {g, u}, {}, true, /*create_graph=*/true);
      (gradients[0].square().sum() + gradients[1].square().sum()).backward();
    };
    penalty(gate, up, gated_activation(gate, up, function));
    const at::Tensor wide_gate = wide_leaf(gate);
    const at::Tensor wide_up = wide_leaf(up);
    penalty(wide_gate, wide_up, gated_reference(wide_gate, wide_up, function));
    EXPECT_TRUE(at::allclose(
        gate.grad().to(at::kDouble), wide_gate.grad(), 1e-4, 1e-4));
    EXPECT_TRUE(
        at::allclose(up.grad().to(at::kDouble), wide_up.grad(), 1e-4, 1e-4));
  }
}

TEST(GatedActivation, RefusesOtherArguments) {
  const at::Tensor x = at::ones({2, 3});
  expect_error(
      [&] {
        gated_activation(
            x.to(at::kDouble), x.to(at::kDouble), GateFunction::kSilu);
      },
      {"gated_activation", "Double"});
  expect_error(
      [&] {
        gated_activation(x, at::ones({3, 2}), GateFunction::kSilu);
      },
      {"gated_activation", "[3, 2]", "[2, 3]"});
}

TEST(RotateHeads, IsAsInFloat64) {
  torch::manual_seed(3);
  for (const at::ScalarType dtype : kTypes) {
    for (const bool adjacent : {false, true}) {
      check_rotary({}, dtype, adjacent);
      check_rotary(
          {.half = 32, .features = 64, .own_tables = false}, dtype, adjacent);
      check_rotary(
          {.heads = 4, .key_heads = 4, .half = 17, .features = 40},
          dtype,
          adjacent);
      check_rotary({.tokens = 0}, dtype, adjacent);
    }
  }
}

TEST(RotateHeads, IsUndoneByItsBackwardAndDifferentiableAgain) {
  torch::manual_seed(3);
  const at::Tensor query = at::randn({1, 2, 3, 8}).requires_grad_();
  const at::Tensor key = at::randn({1, 1, 3, 8}).requires_grad_();
  const at::Tensor angles = at::randn({1, 1, 3, 4});
  const auto [q, k] =
      rotate_heads(query, key, angles.cos(), angles.sin(), false);
  // Only one of the two is used.
  const auto gradients = torch::autograd::grad(
      {(q * q.detach()).sum()}, {query}, {}, true, /*create_graph=*/true);
  EXPECT_TRUE(at::allclose(gradients[0], query, 1e-5, 1e-5));
  EXPECT_TRUE(
      torch::autograd::grad({q.pow(3).sum()}, {query}, {}, true, true)[0]
          .requires_grad());
}

TEST(RotateHeads, RefusesOtherArguments) {
  const at::Tensor x = at::ones({1, 2, 3, 8});
  const at::Tensor table = at::ones({1, 1, 3, 4});
  expect_error(
      [&] {
        rotate_heads(x, at::ones({1, 2, 4, 8}), table, table, false);
      },
      {"rotate_heads", "key", "[1, 2, 4, 8]"});
  expect_error(
      [&] {
        const at::Tensor other = at::ones({1, 1, 2, 4});
        rotate_heads(x, x, other, other, false);
      },
      {"rotate_heads", "table", "[1, 1, 2, 4]"});
}

TEST(LayerKernels, CountAsOneOperatorInDryRuns) {
  const DryRun run;
  const at::Tensor gate = at::empty({64, 1024}).requires_grad_();
  const at::Tensor up = at::empty({64, 1024});
  gated_activation(gate, up, GateFunction::kSilu).sum().backward();
  const at::Tensor heads = at::empty({2, 4, 64, 128});
  const at::Tensor table = at::empty({1, 1, 64, 64});
  rotate_heads(heads, heads, table, table, false);
  const auto bytes_of = [&](const std::string& name) {
    double bytes = 0;
    for (const OperatorWork& work : run.work()) {
      bytes += work.name == name ? work.bytes : 0;
    }
    return bytes;
  };
  constexpr double kGated = 64 * 1024 * 4;
  EXPECT_EQ(bytes_of("tessera::gated_activation"), 3 * kGated);
  // The gradient of a sum is one number, expanded.
  EXPECT_NEAR(bytes_of("tessera::gated_activation_backward"), 4 * kGated, 8);
  constexpr double kHeads = 2 * 4 * 64 * 128 * 4;
  EXPECT_GE(bytes_of("tessera::rotate_heads"), 3 * kHeads);
}

TEST(LayerKernels, TheKernelsSourcesHaveTheOperatorsResults) {
  with_shim([] {
    for (const KernelTrial* trial : layer_kernel_trials()) {
      EXPECT_EQ(trial->difference(at::kCPU).value_or(""), "") << trial->name();
    }
  });
}

TEST(LayerKernels, TheCheckFindsWhatAKernelLeavesOut) {
  with_shim([] {
    for (const KernelTrial* trial : layer_kernel_trials()) {
      // All blocks; the first one; all but the first one of a run.
      const std::vector<std::function<bool(const dim3&)>> runs = {
          [](const dim3&) { return false; },
          [](const dim3& block) { return block.x != 0; },
          [](const dim3& block) { return block.x == 0; }};
      for (size_t i = 0; i < runs.size(); ++i) {
        kernel_options().runs_block = runs[i];
        EXPECT_NE(trial->difference(at::kCPU).value_or(""), "")
            << trial->name() << ", " << i;
      }
    }
  });
}

} // namespace tessera::runtime::layer_kernels_test
