// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/dry_run/cuda_operators.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <mutex>

namespace tessera::runtime {

namespace {

// Of a backend that LibTorch no longer has.
constexpr auto kCudaOperators = c10::DispatchKey::AutocastIPU;

at::Tensor dropout_on_cuda(const at::Tensor& x, double p, bool train) {
  const c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet{kCudaOperators}};
  if (!train || p == 0 || p == 1 || x.numel() == 0) {
    return at::dropout(x, p, train);
  }
  return std::get<0>(at::native_dropout(x, p, train));
}

/// Flash attention needs 16 bits, no mask and few features; the efficient
/// kernel takes the rest.
at::Tensor attention_on_cuda(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  const c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet{kCudaOperators}};
  const bool has_mask = mask && mask->defined();
  const bool is_half =
      query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  const bool is_fused = query.dim() == 4 && query.scalar_type() != at::kDouble;
  if (!is_fused ||
      (enable_gqa && query.size(1) != key.size(1) && (has_mask || !is_half))) {
    return at::scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal, scale, enable_gqa);
  }
  if (is_half && !has_mask && query.size(3) <= 256) {
    return std::get<0>(at::_scaled_dot_product_flash_attention(
        query, key, value, dropout, is_causal, false, scale));
  }
  std::optional<at::Tensor> bias;
  if (has_mask) {
    const bool is_bool = mask->scalar_type() == at::kBool;
    bias =
        (is_bool ? at::zeros_like(*mask, query.options())
                       .masked_fill_(
                           mask->logical_not(),
                           -std::numeric_limits<double>::infinity())
                 : *mask)
            .expand({query.size(0), query.size(1), query.size(2), key.size(2)});
  }
  const bool keeps =
      at::GradMode::is_enabled() &&
      (query.requires_grad() || key.requires_grad() || value.requires_grad());
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      query, key, value, bias, keeps, dropout, is_causal, scale));
}

void register_cuda_operators() {
  // Never destroyed, like the dispatcher.
  static auto* fallback = new torch::Library(
      torch::Library::IMPL, "_", kCudaOperators, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFallthrough());
  static auto* operators = new torch::Library(
      torch::Library::IMPL, "aten", kCudaOperators, __FILE__, __LINE__);
  operators->impl("dropout", &dropout_on_cuda);
  operators->impl("scaled_dot_product_attention", &attention_on_cuda);
}

} // namespace

c10::DispatchKeySet cuda_operators_key() {
  static std::once_flag once;
  std::call_once(once, register_cuda_operators);
  return c10::DispatchKeySet{kCudaOperators};
}

} // namespace tessera::runtime
