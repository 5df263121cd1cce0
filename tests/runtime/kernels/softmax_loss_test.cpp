// SPDX-License-Identifier: Apache-2.0
// Losses of rows and their gradients in place against float64: the CPU's
// kernels, LibTorch's operators, and the CUDA kernel compiled as C++
// (support/cuda_shim).
#include "runtime/kernels/softmax_loss_cases.h"
#include "support/cuda_shim/kernel_run.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/softmax_loss_cuda.h"
#include "tessera/runtime/kernels/softmax_loss_kernels.h"
#include "tessera/runtime/kernels/softmax_part.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace tessera::runtime::softmax_loss_test {

namespace {

using softmax_loss_cases::all_cases;
using softmax_loss_cases::Case;
using softmax_loss_cases::check_case;
using softmax_loss_cases::check_extremes;
using softmax_loss_cases::LossKernel;
using tests::run_ranks;
using tests::cuda_shim::dim3;
using tests::cuda_shim::kernel_options;
using tests::cuda_shim::OptionsScope;

constexpr auto kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

LowPrecision format_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? LowPrecision::kBFloat16
         : dtype == at::kHalf   ? LowPrecision::kFloat16
                                : LowPrecision::kNone;
}

/// By a kernel of rows.
LossKernel by_rows(const std::function<void(const SoftmaxLossRows&)>& kernel) {
  return [kernel](
             const at::Tensor& logits,
             const at::Tensor& losses,
             const at::Tensor& targets,
             const at::Tensor& scale,
             int64_t classes,
             const SoftmaxLossOptions& options,
             bool gradients) {
    kernel(
        {.logits = logits.mutable_data_ptr(),
         .type = format_of(logits.scalar_type()),
         .rows = logits.size(0),
         .classes = classes,
         .columns = logits.size(1),
         .row_stride = logits.stride(0),
         .targets = targets.const_data_ptr<int64_t>(),
         .class_weights = options.class_weights.defined()
                              ? options.class_weights.const_data_ptr<float>()
                              : nullptr,
         .scale = scale.const_data_ptr<float>(),
         .losses = losses.mutable_data_ptr<float>(),
         .ignore_index = options.ignore_index,
         .label_smoothing = static_cast<float>(options.label_smoothing),
         .z_loss = static_cast<float>(options.z_loss),
         .gradients = gradients});
  };
}

void launch_shim(const SoftmaxLossRows& rows) {
  if (rows.rows > 0) {
    EXPECT_EQ(launch_softmax_loss(rows, nullptr), cudaSuccess);
  }
}

std::vector<Isa> available() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_available(isa)) {
      found.push_back(isa);
    }
  }
  return found;
}

/// With the CPU as the device of the kernel's check, in a process of its own.
void with_the_shim_as_plugin(const std::function<void()>& body) {
  run_ranks(1, [&](World&) {
    replace_cuda_backend({.loaded = true, .device_type = at::kCPU});
    const OptionsScope options;
    register_softmax_loss(&launch_shim);
    body();
  });
}

} // namespace

TEST(SoftmaxLoss, OfAllInstructionSetsIsAsInFloat64) {
  for (const Isa isa : available()) {
    SCOPED_TRACE(static_cast<int>(isa));
    const LossKernel run = by_rows([isa](const SoftmaxLossRows& rows) {
      softmax_loss_kernel(isa)(rows, 0, rows.rows);
    });
    for (const Case& which : all_cases()) {
      check_case(which, run);
    }
    for (const auto dtype : kDtypes) {
      check_extremes(dtype, run);
    }
  }
}

TEST(SoftmaxLoss, HalvesOfAllInstructionSetsAreThoseOfOperators) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto dtype : kDtypes) {
    for (const int64_t classes : {1, 7, 45, 5003}) {
      for (const bool weighted : {false, true}) {
        torch::manual_seed(4);
        // Columns of padding behind the classes.
        const at::Tensor logits = torch::randn({5, classes + 3}).to(dtype);
        logits[3].narrow(0, 0, classes).fill_(-kInfinity);
        const at::Tensor targets = torch::tensor(
            {int64_t{0},
             classes - 1,
             kIgnoredRow,
             kClassElsewhere,
             kClassElsewhere});
        SoftmaxPart part{
            .logits = logits.clone(),
            .targets = targets,
            .class_weights =
                weighted ? torch::rand({classes}) + 0.5 : at::Tensor(),
            .classes = classes};
        const at::Tensor exact_sums = torch::empty({5, 4}, at::kDouble);
        softmax_part_sums(part, exact_sums, true, /*fused=*/false);
        at::Tensor factors = torch::rand({5, 4});
        factors.select(1, 0).copy_(exact_sums.select(1, 0));
        SoftmaxPart exact = part;
        exact.logits = logits.to(at::kDouble);
        softmax_part_gradient_(exact, factors.to(at::kDouble), /*fused=*/false);
        for (const Isa isa : available()) {
          SCOPED_TRACE(
              c10::str(dtype, " ", classes, " ", static_cast<int>(isa)));
          const at::Tensor found = logits.clone();
          const SoftmaxLossRows rows{
              .logits = found.mutable_data_ptr(),
              .type = format_of(dtype),
              .rows = 5,
              .classes = classes,
              .columns = found.size(1),
              .row_stride = found.stride(0),
              .targets = targets.const_data_ptr<int64_t>(),
              .class_weights = weighted
                                   ? part.class_weights.const_data_ptr<float>()
                                   : nullptr,
              .scale = nullptr,
              .losses = nullptr,
              .ignore_index = kIgnoredRow,
              .label_smoothing = 1,
              .z_loss = 0,
              .gradients = true};
          const at::Tensor sums = torch::full({5, 4}, NAN);
          softmax_part_kernels(isa).sums(
              rows, sums.mutable_data_ptr<float>(), 0, 5);
          for (const int64_t row : {0, 1, 3, 4}) { // 2 is ignored
            EXPECT_TRUE(at::allclose(
                sums[row].to(at::kDouble), exact_sums[row], 1e-5, 1e-4))
                << row << sums[row] << exact_sums[row];
          }
          EXPECT_TRUE(at::isfinite(sums[2]).all().item<bool>());
          softmax_part_kernels(isa).gradient(
              rows, factors.const_data_ptr<float>(), 0, 5);
          EXPECT_TRUE(softmax_loss_cases::is_close(found, exact.logits, 1e-5));
          EXPECT_EQ(found[2].count_nonzero().item<int64_t>(), 0);
          EXPECT_EQ(
              found.narrow(1, classes, 3).count_nonzero().item<int64_t>(), 0);
        }
      }
    }
  }
}

TEST(SoftmaxLoss, OfTheOperatorIsAsInFloat64) {
  for (const Case& which : all_cases()) {
    check_case(which, softmax_loss_);
  }
  // Several threads.
  check_case({at::kFloat, 301, 1009, 1009}, softmax_loss_);
}

TEST(SoftmaxLoss, OfLibTorchsOperatorsIsAsInFloat64) {
  for (const Case& which : all_cases()) {
    if (which.rows > 0) {
      check_case(which, softmax_loss_by_operators);
    }
  }
}

TEST(SoftmaxLoss, OfTheCudaKernelIsAsInFloat64) {
  const OptionsScope options;
  for (const Case& which : all_cases()) {
    check_case(which, by_rows(launch_shim));
  }
  for (const auto dtype : kDtypes) {
    check_extremes(dtype, by_rows(launch_shim));
  }
}

TEST(SoftmaxLoss, CheckOfTheCudaKernelPasses) {
  with_the_shim_as_plugin([] {
    for (const auto dtype : kDtypes) {
      const KernelTrial& trial = softmax_loss_trial(format_of(dtype));
      EXPECT_EQ(trial.difference(at::kCPU).value_or(""), "") << trial.name();
    }
  });
}

TEST(SoftmaxLoss, CheckOfTheCudaKernelFindsRowsThatAreLeftOut) {
  with_the_shim_as_plugin([] {
    for (const auto dtype : kDtypes) {
      for (unsigned row = 0; row < 5; ++row) {
        kernel_options().runs_block = [row](const dim3& block) {
          return block.x != row;
        };
        EXPECT_TRUE(softmax_loss_trial(format_of(dtype))
                        .difference(at::kCPU)
                        .has_value())
            << row;
      }
    }
  });
}

TEST(SoftmaxLoss, IsOneOperatorOfADryRun) {
  DryRun run;
  const at::Tensor logits = at::empty({64, 1001});
  const at::Tensor losses = at::empty({64});
  const at::Tensor targets = at::zeros({64}, at::kLong);
  const at::Tensor scale = at::ones({});
  run.forget_work();
  softmax_loss_(logits, losses, targets, scale, 1001, {}, true);
  std::set<std::string> names;
  double bytes = 0;
  for (const OperatorWork& work : run.work()) {
    names.insert(work.name);
    bytes += work.bytes;
  }
  EXPECT_EQ(names, std::set<std::string>{"tessera::softmax_loss_"});
  EXPECT_NEAR(bytes, 2.0 * 64 * 1001 * 4, 64 * 30);
}

TEST(SoftmaxLoss, SaysWhichArgumentsDoNotFit) {
  const at::Tensor logits = torch::zeros({3, 8});
  const at::Tensor losses = torch::zeros({3});
  const at::Tensor targets = torch::zeros({3}, torch::kLong);
  const at::Tensor scale = torch::ones({});
  const auto run = [&](const at::Tensor& some_logits,
                       const at::Tensor& some_losses,
                       int64_t classes) {
    return [=] {
      softmax_loss_(
          some_logits, some_losses, targets, scale, classes, {}, true);
    };
  };
  expect_error(
      run(logits, losses, 9), {"softmax_loss_", "[3, 8]", "9 classes"});
  expect_error(
      run(logits.to(torch::kDouble), losses, 8), {"logits are Double"});
  expect_error(run(logits, torch::zeros({4}), 8), {"losses are", "[4]", "[3]"});
}

} // namespace tessera::runtime::softmax_loss_test
