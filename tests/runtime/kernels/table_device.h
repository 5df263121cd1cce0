// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TableDevice` runs the cases of device_cases.h with a table of kernels, on
// memory of the host: those of `shim_kernels()`, the CUDA kernels compiled as
// C++ (support/cuda_shim), or LibTorch's operators.

#include "tessera/runtime/kernels/block_quantize_cuda.h"
#include "tessera/runtime/kernels/device_kernels.h"
#include "tessera/runtime/kernels/norm_cuda.h"
#include "tessera/runtime/kernels/pack_cuda.h"
#include "tessera/runtime/kernels/rows_cuda.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cuda.h"

#include "tessera/runtime/kernels/lamb.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace tessera {

namespace shim {

inline runtime::NormRows norm_rows_of(
    const at::Tensor& x,
    const runtime::NormLayout& layout,
    const std::optional<at::Tensor>& weight,
    bool centered) {
  return {
      .x = x.const_data_ptr(),
      .type = x.scalar_type() == at::kHalf ? runtime::LowPrecision::kFloat16
                                           : runtime::LowPrecision::kBFloat16,
      .weight = runtime::float_data(weight.value_or(at::Tensor())),
      .rows = x.numel() / layout.features,
      .features = layout.features,
      .centered = centered,
      .groups = layout.groups,
      .spatial = layout.spatial};
}

inline runtime::NormResults norm(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  const runtime::NormRows rows =
      norm_rows_of(x, {features, groups, spatial}, weight, centered);
  const at::Tensor y = at::zeros_like(x);
  const at::Tensor mean = at::zeros({centered ? rows.rows : 0});
  const at::Tensor rstd = at::zeros({rows.rows});
  EXPECT_EQ(
      runtime::launch_norm(
          {.in = rows,
           .bias = runtime::float_data(bias.value_or(at::Tensor())),
           .eps = static_cast<float>(eps),
           .y = y.mutable_data_ptr(),
           .mean = mean.mutable_data_ptr<float>(),
           .rstd = rstd.mutable_data_ptr<float>()},
          nullptr),
      cudaSuccess);
  return {y, mean, rstd};
}

inline runtime::NormResults norm_backward(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> /*wanted*/) {
  const runtime::NormLayout layout{features, groups, spatial};
  const runtime::NormRows rows = norm_rows_of(x, layout, weight, centered);
  const int64_t parts = runtime::norm_backward_parts(rows);
  const at::Tensor gradient_x = at::zeros_like(x);
  const at::Tensor weights = at::zeros({parts, layout.parameters()});
  const at::Tensor biases = at::zeros_like(weights);
  EXPECT_EQ(
      runtime::launch_norm_backward(
          {.in = rows,
           .gradient = gradient.const_data_ptr(),
           .mean = runtime::float_data(mean),
           .rstd = runtime::float_data(rstd),
           .gradient_x = gradient_x.mutable_data_ptr(),
           .gradient_weight = weights.mutable_data_ptr<float>(),
           .gradient_bias = biases.mutable_data_ptr<float>(),
           .parts = parts},
          nullptr),
      cudaSuccess);
  return {gradient_x, weights.sum(0), biases.sum(0)};
}

} // namespace shim

inline const runtime::DeviceKernels& shim_kernels() {
  static const runtime::DeviceKernels kKernels{
      .update =
          [](const runtime::UpdateShards& shards) {
            EXPECT_EQ(runtime::launch_update(shards, nullptr), cudaSuccess);
          },
      .lamb_moments =
          [](const runtime::LambShards& shards, double* sums) {
            EXPECT_EQ(
                runtime::launch_lamb_moments(shards, sums, nullptr),
                cudaSuccess);
          },
      .pack =
          [](std::span<const runtime::PackShard> shards,
             runtime::ElementType target_type,
             double factor,
             runtime::PackMode mode) {
            EXPECT_EQ(
                runtime::launch_pack(
                    shards.data(),
                    shards.size(),
                    target_type,
                    factor,
                    mode,
                    nullptr),
                cudaSuccess);
          },
      .blocks =
          [](const runtime::BlockArrays& arrays) {
            EXPECT_EQ(runtime::launch_blocks(arrays, nullptr), cudaSuccess);
          },
      .norm = &shim::norm,
      .norm_backward = &shim::norm_backward,
      .add_bias =
          [](const runtime::BiasRows& rows) {
            EXPECT_EQ(runtime::launch_add_bias(rows, nullptr), cudaSuccess);
          },
      .column_sums =
          [](const runtime::ColumnSums& sums) {
            EXPECT_EQ(runtime::launch_column_sums(sums, nullptr), cudaSuccess);
          },
      .copy_rows =
          [](const runtime::RowCopy& rows) {
            EXPECT_EQ(runtime::launch_copy_rows(rows, nullptr), cudaSuccess);
          }};
  return kKernels;
}

struct TableDevice {
  static int64_t many_turns() {
    return 30'001;
  }

  const runtime::DeviceKernels& kernels;

  at::Tensor copy(const at::Tensor& t, int64_t offset) const {
    return at::empty({t.numel() + offset}, t.options())
        .narrow(0, offset, t.numel())
        .copy_(t);
  }
  void update(std::span<const runtime::UpdateSegment> runs) const {
    with_type(runs, [&]<typename T>(T) {
      std::visit(
          [&]<typename Step>(const Step&) {
            using Shard = runtime::ShardOf<T, Step>;
            std::vector<Shard> shards;
            for (const runtime::UpdateSegment& run : runs) {
              shards.push_back(runtime::detail::make_shard<Shard>(
                  checks(), run.tensors, std::get<Step>(run.step)));
            }
            kernels.update(std::span<const Shard>(shards));
          },
          runs.front().step);
    });
  }
  void lamb_moments(
      std::span<const runtime::LambSegment> runs,
      const at::Tensor& sums) const {
    const at::Tensor partial = at::zeros(
        {static_cast<int64_t>(runs.size()), runtime::kLambCudaBlocks, 2},
        at::kDouble);
    with_shards(runs, [&](const auto& shards) {
      kernels.lamb_moments(shards, partial.mutable_data_ptr<double>());
    });
    sums.copy_(partial.sum(1));
  }
  void lamb_weights(std::span<const runtime::LambSegment> runs) const {
    with_shards(runs, [&](const auto& shards) { kernels.update(shards); });
  }

 private:
  static runtime::detail::UpdateChecks checks() {
    return runtime::detail::UpdateChecks("table_device");
  }
  /// Calls use(T{}) with the type of the masters.
  template <typename Run, typename Use>
  static void with_type(std::span<const Run> runs, const Use& use) {
    if (runs.front().tensors.master.scalar_type() == at::kDouble) {
      use(double{});
    } else {
      use(float{});
    }
  }
  /// Calls use(shards) with the runs as the kernels' arguments.
  template <typename Use>
  static void with_shards(
      std::span<const runtime::LambSegment> runs,
      const Use& use) {
    with_type(runs, [&]<typename T>(T) {
      using Shard = runtime::LambShard<T>;
      std::vector<Shard> shards;
      for (const runtime::LambSegment& run : runs) {
        shards.push_back(runtime::detail::make_shard<Shard>(
            checks(), run.tensors, run.step));
        if (run.lr_factor.defined()) {
          shards.back().rule.lr_factor = run.lr_factor.const_data_ptr<double>();
        }
      }
      use(std::span<const Shard>(shards));
    });
  }
};

} // namespace tessera
