// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/fast_operators.h"

#include "tessera/runtime/core/replaced_kernels.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/pack_segments.h"
#include "tessera/runtime/memory/product_padding.h"

#include <ATen/DimVector.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <optional>

namespace tessera::runtime {

namespace {

/// Of two neighboring dimensions of x and y, or fewer, before the last: their
/// sizes and strides; nothing where more remain.
struct Batches {
  int64_t batches = 1;
  int64_t rows = 1;
  int64_t strides[2][2] = {{0, 0}, {0, 0}}; ///< of x and y: batches, rows
};

std::optional<Batches> batches_of(const at::Tensor& x, const at::Tensor& y) {
  Batches found;
  int dims = 0;
  int64_t* const sizes[] = {&found.rows, &found.batches};
  for (int64_t dim = x.dim() - 2; dim >= 0; --dim) {
    const int64_t size = x.size(dim);
    if (size == 1) {
      continue;
    }
    const auto continues = [&](const at::Tensor& t, const int64_t* strides) {
      return t.stride(dim) == strides[2 - dims] * *sizes[dims - 1];
    };
    if (dims > 0 && continues(x, found.strides[0]) &&
        continues(y, found.strides[1])) {
      *sizes[dims - 1] *= size;
      continue;
    }
    if (dims == 2) {
      return std::nullopt;
    }
    *sizes[dims] = size;
    found.strides[0][1 - dims] = x.stride(dim);
    found.strides[1][1 - dims] = y.stride(dim);
    ++dims;
  }
  return found;
}

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

/// Whether `dims` are all but the last of several.
bool are_all_but_last(at::OptionalIntArrayRef dims, int64_t dim) {
  if (!dims || dim < 2 || static_cast<int64_t>(dims->size()) != dim - 1) {
    return false;
  }
  uint64_t seen = 0;
  for (const int64_t one : *dims) {
    seen |= uint64_t{1} << (one < 0 ? one + dim : one);
  }
  return seen == (uint64_t{1} << (dim - 1)) - 1;
}

/// Smaller sums take as long as it takes to launch them.
constexpr int64_t kLeastSummed = int64_t{1} << 16;

at::Tensor fast_sum(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = self.scalar_type();
  if (self.is_cpu() || self.numel() < kLeastSummed || !bias_type(type) ||
      dtype.value_or(type) != type || !are_all_but_last(dims, self.dim()) ||
      !self.is_contiguous() || self.is_neg()) {
    const at::ScalarType result_type = dtype.value_or(
        at::isIntegralType(type, /*includeBool=*/true) ? at::kLong : type);
    at::Tensor result = at::empty({0}, self.options().dtype(result_type));
    return at::_ops::sum_IntList_out::redispatch(
        kernels_of(self.device()), self, dims, keepdim, dtype, result);
  }
  const int64_t features = self.size(-1);
  const int64_t rows = self.numel() / features;
  at::DimVector sizes(keepdim ? self.dim() - 1 : 0, 1);
  sizes.push_back(features);
  at::Tensor sums = at::empty(sizes, self.options());
  const at::Tensor parts = at::empty(
      {column_sum_parts(rows, features), features},
      self.options().dtype(at::kFloat));
  const c10::DeviceGuard guard(self.device());
  column_sums_cuda(
      {.x = self.const_data_ptr(),
       .parts = parts.mutable_data_ptr<float>(),
       .sums = sums.mutable_data_ptr(),
       .rows = rows,
       .features = features,
       .type = *bias_type(type)});
  return sums;
}

constexpr int64_t kLeastCopied = int64_t{1} << 20;
constexpr int64_t kLeastColumns = 256;

/// Whether LibTorch would copy these element by element.
bool are_long_rows(const at::Tensor& self, const at::Tensor& from) {
  return !self.is_cpu() && self.numel() >= kLeastCopied && self.dim() >= 2 &&
         self.device() == from.device() && self.sizes() == from.sizes() &&
         c10::isReducedFloatingType(self.scalar_type()) &&
         self.scalar_type() == from.scalar_type() && !self.is_neg() &&
         !from.is_neg() && self.size(-1) >= kLeastColumns &&
         self.stride(-1) == 1 && from.stride(-1) == 1 &&
         !(self.is_contiguous() && from.is_contiguous()) &&
         !self.is_alias_of(from);
}

at::Tensor& fast_copy_(
    at::Tensor& self,
    const at::Tensor& from,
    bool non_blocking) {
  const auto batches = are_long_rows(self, from) ? batches_of(from, self)
                                                 : std::optional<Batches>();
  if (!batches) {
    return at::native::copy_(self, from, non_blocking);
  }
  const c10::DeviceGuard guard(self.device());
  copy_rows_cuda(
      {.from = from.const_data_ptr(),
       .to = self.mutable_data_ptr(),
       .rows = batches->rows,
       .columns = self.size(-1),
       .from_stride = batches->strides[0][1],
       .to_stride = batches->strides[1][1],
       .batches = batches->batches,
       .from_batch_stride = batches->strides[0][0],
       .to_batch_stride = batches->strides[1][0]});
  return self;
}

ReplacedKernels& fast_operators() {
  static auto* const kernels = new ReplacedKernels([](torch::Library& library) {
    library.impl("mm", &fast_mm);
    library.impl("addmm", &fast_addmm);
    library.impl("add_.Tensor", &fast_add_);
    library.impl("sum.dim_IntList", &fast_sum);
    library.impl("copy_", &fast_copy_);
  });
  return *kernels;
}

} // namespace

void use_fast_operators(bool use, c10::DeviceType device) {
  plan_padded_products(use);
  fast_operators().replace(use, device);
}

} // namespace tessera::runtime
