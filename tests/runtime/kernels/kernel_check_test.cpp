// SPDX-License-Identifier: Apache-2.0
// The check of CUDA kernels passes for the kernels' sources, compiled as C++
// (support/cuda_shim), and finds kernels that leave something out.
#include "runtime/kernels/table_device.h"
#include "support/cuda_shim/kernel_run.h"
#include "support/ranks.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/kernels/kernel_problems.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace tessera::runtime::kernel_check_test {

namespace {

using tests::run_ranks;
using tests::cuda_shim::dim3;
using tests::cuda_shim::kernel_options;
using tests::cuda_shim::OptionsScope;

/// With the CPU as the kernels' device, in a process of its own.
void on_the_cpu(const std::function<void()>& body) {
  run_ranks(1, [&](World&) {
    replace_cuda_backend({.loaded = true, .device_type = at::kCPU});
    const OptionsScope options;
    body();
  });
}

std::string difference(const KernelProblem& problem) {
  return difference_from_operators(problem, shim_kernels(), at::kCPU)
      .value_or("");
}

} // namespace

TEST(KernelProblems, TheKernelsSourcesHaveTheOperatorsResults) {
  on_the_cpu([] {
    for (const KernelProblem& problem : kernel_problems()) {
      EXPECT_EQ(difference(problem), "") << problem.name;
    }
  });
}

TEST(KernelProblems, AreOneForEachKernel) {
  on_the_cpu([] {
    std::set<size_t> numbers;
    std::set<std::string> names;
    for (const KernelProblem& problem : kernel_problems()) {
      EXPECT_LT(problem.kernel, kKernels);
      numbers.insert(problem.kernel);
      names.insert(problem.name);
    }
    EXPECT_EQ(numbers.size(), kernel_problems().size());
    EXPECT_EQ(names.size(), kernel_problems().size());
    // Not: the block format of float64, norms of float32 and float64, biases
    // and sums of float64.
    EXPECT_EQ(numbers.size(), kKernels - kCodeTypes - 4);
  });
}

TEST(KernelProblems, FindWhatAKernelLeavesOut) {
  on_the_cpu([] {
    for (const KernelProblem& problem : kernel_problems()) {
      // All blocks; the first one; all but the first one of a run.
      const std::vector<std::function<bool(const dim3&)>> runs = {
          [](const dim3&) { return false; },
          [](const dim3& block) { return block.x != 0 || block.y != 0; },
          [](const dim3& block) { return block.x == 0; }};
      for (size_t i = 0; i < runs.size(); ++i) {
        kernel_options().runs_block = runs[i];
        EXPECT_NE(difference(problem), "") << problem.name << ", " << i;
      }
    }
  });
}

} // namespace tessera::runtime::kernel_check_test
