// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/few_rows_linear.h"

#include "tessera/runtime/kernels/isa.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace tessera::runtime {

namespace {

/// Multiplications that are worth a thread.
constexpr int64_t kThreadWork = 1 << 15;

/// Whether operators on the tensor are those of the CPU and nothing else.
bool is_plain(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain = at::empty({1}).key_set();
  return tensor.key_set() == plain && tensor.scalar_type() == at::kFloat &&
         tensor.is_contiguous();
}

} // namespace

bool takes_few_rows(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
#if defined(__x86_64__)
  if (at::GradMode::is_enabled() || x.dim() < 2 || weight.dim() != 2 ||
      !is_plain(x) || !is_plain(weight)) {
    return false;
  }
  const int64_t k = weight.size(1);
  static const bool has_kernel = best_isa() != Isa::kPortable;
  return has_kernel && k > 0 && x.size(-1) == k && x.numel() > 0 &&
         x.numel() <= kMostFewRows * k &&
         (!bias.defined() || (is_plain(bias) && bias.dim() == 1 &&
                              bias.size(0) == weight.size(0)));
#else
  static_cast<void>(x);
  static_cast<void>(weight);
  static_cast<void>(bias);
  return false;
#endif
}

at::Tensor few_rows_linear(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  at::Tensor y = at::empty(sizes, x.options());
#if defined(__x86_64__)
  const FewRows all{
      x.const_data_ptr<float>(),
      x.numel() / weight.size(1),
      weight.size(1),
      weight.const_data_ptr<float>(),
      bias.defined() ? bias.const_data_ptr<float>() : nullptr,
      y.mutable_data_ptr<float>(),
      weight.size(0)};
  static const auto kernel =
      best_isa() == Isa::kAvx512 ? few_rows_avx512 : few_rows_avx2;
  const int64_t grain =
      std::max<int64_t>(16, kThreadWork / std::max<int64_t>(all.k, 1));
  at::parallel_for(0, all.n, grain, [&](int64_t begin, int64_t end) {
    kernel(all, begin, end);
  });
#endif
  return y;
}

} // namespace tessera::runtime
