// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/fast_operators.h"

#include "tessera/runtime/core/replaced_kernels.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/pack_segments.h"
#include "tessera/runtime/memory/product_padding.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <optional>

namespace tessera::runtime {

namespace {

/// Copies [rows, columns], of which elements of a row follow each other.
void copy_rows(const at::Tensor& into, const at::Tensor& from) {
  if (into.is_cpu()) { // in tests
    into.copy_(from);
    return;
  }
  const c10::DeviceGuard guard(into.device());
  copy_rows_cuda(
      {.from = from.const_data_ptr(),
       .to = into.mutable_data_ptr(),
       .rows = into.size(0),
       .columns = into.size(1),
       .from_stride = from.stride(0),
       .to_stride = into.stride(0)});
}

/// The first rows and columns.
at::Tensor corner(const at::Tensor& x, int64_t rows, int64_t columns) {
  return x.narrow(0, 0, rows).narrow(1, 0, columns);
}

/// A copy with zeros behind its rows and columns.
at::Tensor padded(const at::Tensor& x, int64_t rows, int64_t columns) {
  at::Tensor copy = matrix_in_order_of(x, rows, columns);
  const at::Tensor target = corner(copy, x.size(0), x.size(1));
  if (x.stride(1) == 1) {
    copy_rows(target, x);
  } else {
    copy_rows(target.t(), x.t());
  }
  for (const int64_t dim : {0, 1}) {
    if (const int64_t rest = copy.size(dim) - x.size(dim); rest > 0) {
      copy.narrow(dim, x.size(dim), rest).zero_();
    }
  }
  return copy;
}

/// Calls multiply(a, b, out) with aligned matrices.
template <typename Multiply>
at::Tensor aligned_product(
    const at::Tensor& a,
    const at::Tensor& b,
    const ProductPadding& padding,
    const Multiply& multiply) {
  at::Tensor product = padding.is_any()
                           ? at::empty({padding.m, padding.n}, a.options())
                           : at::empty({0}, a.options());
  multiply(
      padding.a ? padded(a, padding.m, padding.k) : a,
      padding.b ? padded(b, padding.k, padding.n) : b,
      product);
  if (!padding.product) {
    return padding.m > a.size(0) ? product.narrow(0, 0, a.size(0)) : product;
  }
  at::Tensor dense = at::empty({a.size(0), b.size(1)}, a.options());
  copy_rows(dense, corner(product, a.size(0), b.size(1)));
  return dense;
}

at::Tensor fast_mm(const at::Tensor& a, const at::Tensor& b) {
  return aligned_product(
      a,
      b,
      padding_of(a, b),
      [](const at::Tensor& local_a,
         const at::Tensor& local_b,
         at::Tensor& product) {
        at::_ops::mm_out::redispatch(
            kernels_of(local_a.device()), local_a, local_b, product);
      });
}

at::Tensor fast_addmm(
    const at::Tensor& self,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  ProductPadding padding = padding_of(a, b);
  at::Tensor bias = self;
  if (padding.is_any()) {
    if (self.dim() != 1 || self.size(0) != b.size(1)) {
      padding = {};
    } else if (padding.n > b.size(1)) {
      bias = at::zeros({padding.n}, self.options());
      bias.narrow(0, 0, b.size(1)).copy_(self);
    }
  }
  return aligned_product(
      a,
      b,
      padding,
      [&](const at::Tensor& local_a,
          const at::Tensor& local_b,
          at::Tensor& product) {
        at::_ops::addmm_out::redispatch(
            kernels_of(local_a.device()),
            bias,
            local_a,
            local_b,
            beta,
            alpha,
            product);
      });
}

/// That of biases, which are not of float64.
std::optional<ElementType> bias_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::nullopt : detail::element_type(dtype);
}

bool is_bias(
    const at::Tensor& x,
    const at::Tensor& bias,
    const at::Scalar& alpha) {
  return x.dim() >= 2 && bias.dim() == 1 && x.numel() > 0 &&
         bias.size(0) == x.size(-1) && bias.scalar_type() == x.scalar_type() &&
         bias_type(x.scalar_type()) && x.device() == bias.device() &&
         x.is_contiguous() && bias.is_contiguous() && !x.is_alias_of(bias) &&
         alpha.equal(1);
}

at::Tensor& fast_add_(
    at::Tensor& self,
    const at::Tensor& other,
    const at::Scalar& alpha) {
  if (!is_bias(self, other, alpha)) {
    // LibTorch's variant for given results would resize them.
    const auto sizes = at::infer_size_dimvector(self.sizes(), other.sizes());
    TORCH_CHECK(
        self.sizes() == at::IntArrayRef(sizes),
        "output with shape ",
        self.sizes(),
        " doesn't match the broadcast shape ",
        at::IntArrayRef(sizes));
    return at::_ops::add_out::redispatch(
        kernels_of(self.device()), self, other, alpha, self);
  }
  const c10::DeviceGuard guard(self.device());
  add_bias_cuda(
      {.x = self.mutable_data_ptr(),
       .bias = other.const_data_ptr(),
       .rows = self.numel() / other.size(0),
       .features = other.size(0),
       .type = *bias_type(self.scalar_type())});
  return self;
}

ReplacedKernels& fast_operators() {
  static auto* const kernels = new ReplacedKernels([](torch::Library& library) {
    library.impl("mm", &fast_mm);
    library.impl("addmm", &fast_addmm);
    library.impl("add_.Tensor", &fast_add_);
  });
  return *kernels;
}

} // namespace

void use_fast_operators(bool use, c10::DeviceType device) {
  plan_padded_products(use);
  fast_operators().replace(use, device);
}

} // namespace tessera::runtime
