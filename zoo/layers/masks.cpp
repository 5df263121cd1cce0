// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/masks.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

/// Key position minus query position: [1, 1, S, S].
at::Tensor distances(int64_t length, const at::Device& device) {
  const at::Tensor positions =
      torch::arange(length, torch::dtype(torch::kInt64).device(device));
  return (positions.unsqueeze(0) - positions.unsqueeze(1))
      .unsqueeze(0)
      .unsqueeze(0);
}

} // namespace

at::Tensor padding_mask(const at::Tensor& attention_mask) {
  if (!attention_mask.defined()) {
    return {};
  }
  TESSERA_CHECK(
      attention_mask.dim() == 2,
      "the attention mask is {}; it must be [batch, sequence]",
      attention_mask.sizes());
  return attention_mask.ne(0).unsqueeze(1).unsqueeze(1);
}

at::Tensor causal_mask(int64_t length, const at::Device& device) {
  return distances(length, device).le(0);
}

at::Tensor window_mask(
    int64_t length,
    int64_t window,
    const at::Device& device) {
  TESSERA_CHECK(
      window >= 1, "an attention window is {}; it must be 1 or more", window);
  return distances(length, device).abs().lt(window);
}

at::Tensor prefix_mask(const at::Tensor& lengths, int64_t length) {
  TESSERA_CHECK(
      lengths.dim() == 1,
      "the prefix lengths are {}; they must be [batch]",
      lengths.sizes());
  return torch::arange(length, lengths.options())
      .lt(lengths.unsqueeze(1))
      .unsqueeze(1)
      .unsqueeze(1);
}

at::Tensor document_mask(const at::Tensor& document_ids) {
  return document_ids.unsqueeze(2).eq(document_ids.unsqueeze(1)).unsqueeze(1);
}

at::Tensor all_of(std::initializer_list<at::Tensor> masks) {
  at::Tensor all;
  for (const at::Tensor& mask : masks) {
    if (mask.defined()) {
      all = all.defined() ? all & mask : mask;
    }
  }
  return all;
}

at::Tensor with_safe_rows(const at::Tensor& mask) {
  return mask.defined() ? mask | ~mask.any(-1, /*keepdim=*/true) : mask;
}

at::Tensor positions_without_padding(const at::Tensor& attention_mask) {
  const at::Tensor counts = attention_mask.ne(0).to(torch::kInt64);
  return counts.cumsum(1) * counts - 1;
}

} // namespace tessera::zoo
