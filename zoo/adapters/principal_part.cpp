// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/principal_part.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace tessera::zoo {

namespace {

sharding::DeferredInit& deferred_weight(const at::Tensor& weight) {
  TESSERA_CHECK(
      weight.is_contiguous() && weight.storage_offset() == 0,
      "model.lora.init=pissa: a weight of sizes {} without memory is a view of another tensor; call materialize(model) first",
      weight.sizes());
  return *sharding::deferred_init(*weight.storage().unsafeGetStorageImpl());
}

at::Tensor current_value(const at::Tensor& weight) {
  if (!sharding::is_deferred(weight)) {
    return weight.detach();
  }
  const at::Tensor value =
      at::empty({weight.numel()}, weight.options().requires_grad(false));
  deferred_weight(weight).fill(value, 0);
  return value.view(weight.sizes());
}

} // namespace

void check_principal_part(const std::vector<LinearLayer*>& layers, int64_t r) {
  int64_t out = 0;
  for (const LinearLayer* layer : layers) {
    TESSERA_CHECK(
        sharding::divided_parameter(layer->weight) == nullptr,
        "model.lora.init=pissa: a weight of [{}, {}] is divided over tensor-parallel ranks, and none of them has all of it to decompose; set parallel.tensor=1, or another init",
        layer->sizes.out,
        layer->sizes.in);
    out += layer->sizes.out;
  }
  const int64_t in = layers.front()->sizes.in;
  TESSERA_CHECK(
      r <= std::min(out, in),
      "model.lora.init=pissa: the rank {} is larger than {}, the number of singular values of a weight [{}, {}]; set a smaller model.lora.r, or model.lora.rank_pattern for it",
      r,
      std::min(out, in),
      out,
      in);
}

PrincipalPart principal_part(
    const std::vector<LinearLayer*>& layers,
    int64_t r,
    double scaling) {
  check_principal_part(layers, r);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const LinearLayer* layer : layers) {
    values.push_back(current_value(layer->weight).to(at::kFloat));
  }
  const at::Tensor full = at::cat(values);
  values.clear();
  const auto options = layers.front()->weight.options().requires_grad(false);
  if (!runtime::has_dry_values(full.const_data_ptr())) {
    return {
        at::zeros({r, full.size(1)}, options),
        at::zeros({full.size(0), r}, options)};
  }
  const auto [u, s, vh] = at::linalg_svd(full, /*full_matrices=*/false);
  const at::Tensor roots = (s.narrow(0, 0, r) / scaling).sqrt();
  return {
      (roots.unsqueeze(1) * vh.narrow(0, 0, r)).to(options).contiguous(),
      (u.narrow(1, 0, r) * roots).to(options).contiguous()};
}

void add_product(
    const at::Tensor& weight,
    const at::Tensor& a,
    const at::Tensor& b,
    double factor) {
  const at::NoGradGuard no_grad;
  if (!sharding::is_deferred(weight)) {
    const at::Tensor product =
        at::matmul(b.to(at::kFloat), a.to(at::kFloat)) * factor;
    weight.detach().copy_(weight.detach().to(at::kFloat) + product);
    return;
  }
  sharding::DeferredInit init = deferred_weight(weight);
  init.fill = [before = std::move(init.fill), a, b, factor](
                  const at::Tensor& slice, int64_t first) {
    before(slice, first);
    if (!runtime::has_dry_values(slice.const_data_ptr())) {
      return;
    }
    const int64_t in = a.size(1);
    const int64_t row = first / in;
    const int64_t end = (first + slice.numel() + in - 1) / in;
    const at::Tensor product =
        at::matmul(b.narrow(0, row, end - row).to(at::kFloat), a.to(at::kFloat))
            .flatten()
            .narrow(0, first - row * in, slice.numel()) *
        factor;
    slice.copy_(slice.to(at::kFloat) + product.to(slice.device()));
  };
  sharding::set_deferred_init(
      *weight.storage().unsafeGetStorageImpl(), std::move(init));
}

} // namespace tessera::zoo
