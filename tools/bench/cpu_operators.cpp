// SPDX-License-Identifier: Apache-2.0
#include "bench/cpu_operators.h"

#include "tessera/runtime/kernels/bfloat16_product.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/runtime/memory/cpu_allocator.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace tessera::tools {

namespace {

constexpr int64_t kTokens = 1024;
constexpr int64_t kFeatures = 768;
constexpr int64_t kHeads = 12;

using Work = std::function<at::Tensor()>;

/// The median of calls within `seconds`, of one at least.
double seconds_of(const Work& work, double seconds) {
  using Clock = std::chrono::steady_clock;
  work(); // a library's first call
  std::vector<double> each;
  double all = 0;
  do {
    const auto begin = Clock::now();
    work();
    const std::chrono::duration<double> passed = Clock::now() - begin;
    each.push_back(passed.count());
    all += passed.count();
  } while (all < seconds);
  const auto middle =
      each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
  std::nth_element(each.begin(), middle, each.end());
  return *middle;
}

/// A layer's product and the two of its backward.
double products(c10::ScalarType dtype, double seconds) {
  const at::Tensor input = at::randn({kTokens, kFeatures}, dtype);
  const at::Tensor weight = at::randn({4 * kFeatures, kFeatures}, dtype);
  const at::Tensor output = at::randn({kTokens, 4 * kFeatures}, dtype);
  const std::vector<Work> works{
      [&] { return at::mm(input, weight.t()); },
      [&] { return at::mm(output, weight); },
      [&] { return at::mm(output.t(), input); }};
  const double flops =
      2.0 * static_cast<double>(kTokens * kFeatures * 4 * kFeatures);
  double time = 0;
  for (const Work& work : works) {
    time += seconds_of(work, seconds / static_cast<double>(works.size()));
  }
  return flops * static_cast<double>(works.size()) / time;
}

double attention(double seconds) {
  const at::Tensor each = at::randn(
      {1, kHeads, kTokens, kFeatures / kHeads}, c10::ScalarType::BFloat16);
  const double time = seconds_of(
      [&] {
        return at::scaled_dot_product_attention(
            each, each, each, {}, /*dropout_p=*/0, /*is_causal=*/true);
      },
      seconds);
  return 4.0 * static_cast<double>(kTokens * kTokens * kFeatures) / time;
}

/// An operator that is no product.
struct Elementwise {
  int share; ///< of the bytes of a training step, in tenths
  int tensors; ///< that it reads and writes
  Work work;
};

double elementwise(double seconds) {
  const at::Tensor a = at::randn({kTokens, kFeatures});
  const at::Tensor b = at::randn({kTokens, kFeatures});
  const std::vector<Elementwise> all{
      {3, 3, [&] { return at::mul(a, b); }},
      {2, 3, [&] { return at::add(a, b); }},
      {1, 2, [&] { return a.clone(); }},
      {1, 2, [&] { return at::exp(a); }},
      {1, 2, [&] { return at::softmax(a, -1); }},
      {1, 2, [&] { return at::layer_norm(a, {kFeatures}); }},
      {1, 3, [&] { return at::gelu_backward(a, b, "tanh"); }}};
  const auto bytes = static_cast<double>(a.nbytes());
  double time_of_byte = 0;
  for (const Elementwise& each : all) {
    time_of_byte +=
        each.share / 10.0 *
        seconds_of(each.work, seconds / static_cast<double>(all.size())) /
        (each.tensors * bytes);
  }
  return 1 / time_of_byte;
}

} // namespace

CpuOperatorRates measure_cpu_operators(double seconds) {
  const c10::NoGradGuard no_grad;
  const CpuMatmul before = cpu_matmul();
  set_cpu_matmul(CpuMatmul::kAuto); // as a run of `tessera train`
  runtime::keep_freed_cpu_memory(true);
  CpuOperatorRates rates;
  rates.threads = at::get_num_threads();
  rates.products_32bit = products(c10::ScalarType::Float, seconds / 5);
  rates.products_16bit = products(c10::ScalarType::BFloat16, seconds / 5);
  if (runtime::has_bfloat16_products()) {
    set_cpu_matmul(CpuMatmul::kBfloat16); // cpu_matmul=bfloat16
    rates.products_rounded = products(c10::ScalarType::Float, seconds / 5);
    set_cpu_matmul(CpuMatmul::kAuto);
  }
  rates.attention_16bit = attention(seconds / 5);
  rates.elementwise = elementwise(seconds / 5);
  runtime::keep_freed_cpu_memory(false);
  set_cpu_matmul(before);
  return rates;
}

} // namespace tessera::tools
