// SPDX-License-Identifier: Apache-2.0
// The sum, dropout and norm between two halves of a transformer's layer on the
// CPU, forward and backward: residual_norm() beside LibTorch's operators.
//
//   bench_residual_norm [rows=4096] [features=768] [rounds=15]
//
// Both take turns, on one thread; times are the processor's, medians.

#include "tessera/runtime/kernels/residual_norm.h"
#include "tessera/runtime/memory/cpu_allocator.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

namespace tessera {

namespace {

struct NormSizes {
  int64_t rows = 4096;
  int64_t features = 768;
  int64_t rounds = 15;
};

struct NormCase {
  const char* name;
  bool centered;
  double dropout;
  at::ScalarType dtype;
};

/// Milliseconds of forward and backward.
double time_of(const NormCase& which, const NormSizes& sizes, bool fused) {
  const auto matrix = [&] {
    return torch::randn({sizes.rows, sizes.features}).to(which.dtype);
  };
  const at::Tensor x = matrix().requires_grad_();
  const at::Tensor branch = matrix().requires_grad_();
  const auto ones = torch::ones({sizes.features}).to(which.dtype);
  const at::Tensor weight = ones.clone().requires_grad_();
  const at::Tensor bias =
      which.centered ? ones.clone().requires_grad_() : at::Tensor();
  const at::Tensor of_sum = matrix();
  const at::Tensor of_normed = matrix();
  const std::clock_t begin = std::clock();
  at::Tensor sum;
  at::Tensor normed;
  if (fused) {
    at::Tensor mask;
    if (which.dropout > 0) {
      mask = at::empty(branch.sizes(), at::kBool).bernoulli_(1 - which.dropout);
    }
    const auto result = runtime::residual_norm(
        x,
        branch,
        mask,
        weight,
        bias,
        {.centered = which.centered, .branch_scale = 1 / (1 - which.dropout)});
    sum = result.sum;
    normed = result.normed;
  } else {
    sum = x + (which.dropout > 0 ? at::dropout(branch, which.dropout, true)
                                 : branch);
    normed = which.centered
                 ? at::layer_norm(sum, {sizes.features}, weight, bias, 1e-5)
                 : at::rms_norm(sum, {sizes.features}, weight, 1e-5);
  }
  torch::autograd::backward({sum, normed}, {of_sum, of_normed});
  return 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const NormSizes& sizes) {
  at::set_num_threads(1);
  runtime::keep_freed_cpu_memory(true); // as in training
  for (const NormCase& which :
       {NormCase{"LayerNorm", true, 0, at::kFloat},
        NormCase{"LayerNorm after dropout", true, 0.1, at::kFloat},
        NormCase{"RMSNorm", false, 0, at::kFloat},
        NormCase{"LayerNorm, bfloat16", true, 0, at::kBFloat16},
        NormCase{"RMSNorm, bfloat16", false, 0, at::kBFloat16}}) {
    std::vector<double> by_libtorch;
    std::vector<double> by_kernel;
    for (int64_t round = -1; round < sizes.rounds; ++round) {
      const double plain = time_of(which, sizes, false);
      const double fused = time_of(which, sizes, true);
      if (round >= 0) { // the first one touches the memory
        by_libtorch.push_back(plain);
        by_kernel.push_back(fused);
      }
    }
    std::printf(
        "%-24s LibTorch %7.2f ms, kernel %7.2f ms, ratio %.2f\n",
        which.name,
        median(by_libtorch),
        median(by_kernel),
        median(by_kernel) / median(by_libtorch));
  }
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  tessera::NormSizes sizes;
  const std::map<std::string, int64_t*> fields = {
      {"rows", &sizes.rows},
      {"features", &sizes.features},
      {"rounds", &sizes.rounds}};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t end = text.find('=');
    const auto field = fields.find(text.substr(0, end));
    if (end == std::string::npos || field == fields.end()) {
      std::fprintf(
          stderr, "bench_residual_norm: %s is not SIZE=NUMBER\n", argv[i]);
      return 1;
    }
    *field->second = std::atoll(text.c_str() + end + 1);
  }
  tessera::compare(sizes);
}
