// SPDX-License-Identifier: Apache-2.0
// LibTorch's operators in place of kernels have the bits of the CPU's kernels.
#include "runtime/kernels/device_cases.h"
#include "runtime/kernels/norm_cases.h"
#include "runtime/kernels/table_device.h"
#include "support/ranks.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/runtime/kernels/pack_segments.h"

#include <gtest/gtest.h>

#include <functional>

namespace tessera::runtime::operator_kernels_test {

namespace {

using tests::run_ranks;

/// With the CPU as the kernels' device, in a process of its own.
void on_operators(const std::function<void(const TableDevice&)>& body) {
  run_ranks(1, [&](World&) {
    replace_cuda_backend({.loaded = true, .device_type = at::kCPU});
    body(TableDevice{operator_kernels()});
  });
}

} // namespace

TEST(OperatorKernels, AdamWHasTheBitsOfTheCpu) {
  on_operators([](const TableDevice& device) {
    device_cases::check_adamw_steps(device, at::kFloat);
  });
}

TEST(OperatorKernels, HaveTheBitsOfTheCpu) {
  on_operators([](const TableDevice& device) {
    device_cases::check_all_updates(device, at::kFloat);
  });
}

TEST(OperatorKernels, KeepWhatIsNotFinite) {
  on_operators([](const TableDevice& device) {
    device_cases::check_extremes(device, at::kFloat);
  });
}

TEST(OperatorKernels, RoundStochasticallyAsTheCpuDoes) {
  on_operators([](const TableDevice& device) {
    device_cases::check_stochastic_rounding(device, at::kFloat);
  });
}

TEST(OperatorKernels, UpdateManyRunsAsOneByOne) {
  on_operators([](const TableDevice& device) {
    device_cases::check_many_runs(device, at::kFloat);
  });
}

TEST(OperatorKernels, LambsSumsAgree) {
  on_operators([](const TableDevice& device) {
    for (const at::ScalarType dtype : device_cases::kMasterTypes) {
      device_cases::check_lamb_sums(device, dtype);
    }
  });
}

// More than one chunk of operators.
TEST(OperatorKernels, GoOnAfterAChunk) {
  on_operators([](const TableDevice& device) {
    constexpr int64_t kNumel = (int64_t{1} << 20) + 37;
    const UpdateTensors cpu =
        device_cases::tensors_of(kNumel, at::kFloat, at::kBFloat16);
    const UpdateTensors local = device_cases::on_device(device, cpu);
    const AdanStep step{.step = 3, .rounding = {true, 5, 7}};
    const UpdateSegment expected{cpu, step};
    update_segments_({&expected, 1});
    const UpdateSegment run{local, step};
    device.update({&run, 1});
    device_cases::expect_same(local, cpu);

    const BlockFormat format{CodeType::kInt4, 256};
    const at::Tensor values = at::randn({2 * kNumel});
    const at::Tensor wire = at::zeros({2 * format.bytes(kNumel)}, at::kByte);
    const at::Tensor own_wire = at::zeros_like(wire);
    const at::Tensor sum = at::zeros({kNumel});
    const at::Tensor local_sum = at::zeros_like(sum);
    encode_blocks_(wire, values, format, 2);
    sum_blocks_(sum, wire, format, 2, 0.5);
    for (const auto& [work, array] :
         {std::pair{BlockWork::kEncode, values},
          {BlockWork::kSum, local_sum}}) {
      operator_kernels().blocks(
          {.work = work,
           .format = format,
           .type = ElementType::kFloat32,
           .values = array.mutable_data_ptr(),
           .wire = own_wire.mutable_data_ptr<uint8_t>(),
           .numel = kNumel,
           .parts = 2,
           .factor = 0.5F});
    }
    EXPECT_TRUE(torch::equal(own_wire, wire));
    EXPECT_TRUE(torch::equal(local_sum, sum));

    // Norms: more samples than a chunk has.
    constexpr int64_t kRows = 5000;
    constexpr int64_t kFeatures = 256;
    const at::Tensor x = at::randn({kRows, kFeatures}).to(at::kBFloat16);
    const at::Tensor gradient = at::randn_like(x);
    const at::Tensor weight = at::rand({kFeatures}) + 0.5;
    const auto [y, mean, rstd] = operator_kernels().norm(
        x, kFeatures, 1, 1, weight, std::nullopt, 1e-5, /*centered=*/true);
    const auto [gradient_x, gradient_weight, gradient_bias] =
        operator_kernels().norm_backward(
            gradient,
            x,
            kFeatures,
            1,
            1,
            mean,
            rstd,
            weight,
            /*centered=*/true,
            {true, true, false});
    const at::Tensor wide_x = norm_cases::wide_leaf(x);
    const at::Tensor wide_weight = norm_cases::wide_leaf(weight);
    const at::Tensor exact =
        norm_cases::reference_norm(wide_x, wide_weight, {}, 1e-5, true);
    exact.backward(gradient.to(at::kDouble));
    EXPECT_TRUE(norm_cases::is_rounded(y, exact));
    EXPECT_TRUE(norm_cases::is_rounded(gradient_x, wide_x.grad()));
    EXPECT_TRUE(norm_cases::is_rounded(gradient_weight, wide_weight.grad()));
    EXPECT_FALSE(gradient_bias.defined());
  });
}

} // namespace tessera::runtime::operator_kernels_test
