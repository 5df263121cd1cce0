// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/cpu_matmul.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/replaced_kernels.h"
#include "tessera/runtime/kernels/bfloat16_product.h"
#include "tessera/runtime/memory/cpu_product_memory.h"

#include <ATen/CPUFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>

namespace tessera {

namespace {

// With fewer multiplications than this, calling oneDNN costs more than it
// saves.
constexpr int64_t kLeastWork = 1 << 18;
// Rounding a matrix with fewer rows and columns costs more than it saves.
constexpr int64_t kLeastRounded = 32;
// 4 MiB, about one core's share of the caches.
constexpr int64_t kStripElements = 1 << 20;

/// x [m, k], weight [n, k], bias [n] or none -> [m, n]; activation "none".
using Linear = at::Tensor(
    const at::Tensor& x,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    std::string_view activation,
    c10::List<std::optional<at::Scalar>> scalars,
    std::optional<std::string_view> algorithm);

std::optional<c10::OperatorHandle> find_linear() {
  const c10::OperatorName name("mkldnn::_linear_pointwise", "");
  auto found = c10::Dispatcher::singleton().findSchema(name);
  return found && found->hasKernelForDispatchKey(c10::DispatchKey::CPU)
             ? found
             : std::nullopt;
}

at::Tensor multiply(
    const at::Tensor& a,
    const at::Tensor& b,
    const std::optional<at::Tensor>& bias) {
  static const auto linear = find_linear()->typed<Linear>();
  const at::AutoDispatchBelowAutograd below_autograd;
  return linear.call(
      a, b.t(), bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

bool is_dense_float(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.is_cpu() &&
         tensor.layout() == at::kStrided;
}

/// A left operand of more elements that is not contiguous is multiplied in
/// strips, because the operator copies it: the transposed gradient of logits.
constexpr int64_t kMostCopied = 1 << 22;

/// What is in use beside LibTorch.
struct Libraries {
  bool onednn = false;
  bool bfloat16 = false;
};

Libraries& in_use() {
  static Libraries libraries;
  return libraries;
}

/// Whether one of them computes a [m, k] times b [k, n]; false for malformed
/// operands.
bool takes(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) &&
         is_dense_float(a) && is_dense_float(b) &&
         a.size(0) * a.size(1) * b.size(1) >= kLeastWork;
}

/// What dry runs plan in place of what is in use, while there is a
/// PlannedCpuMatmul; several threads may plan at a time, all for one choice.
struct PlannedLibraries {
  std::mutex mutex;
  int scopes = 0;
  Libraries libraries;
};

PlannedLibraries& planned() {
  static auto* const all = new PlannedLibraries;
  return *all;
}

Libraries planned_or_in_use() {
  const std::lock_guard lock(planned().mutex);
  return planned().scopes > 0 ? planned().libraries : in_use();
}

/// Whether operands that it takes are rounded.
bool rounds(
    const at::Tensor& a,
    const at::Tensor& b,
    const Libraries& libraries = in_use()) {
  return libraries.bfloat16 &&
         std::min({a.size(0), a.size(1), b.size(1)}) >= kLeastRounded;
}

/// Whether a product can be written to it while its operands are read.
bool has_rows_apart_from(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b) {
  return out.stride(1) == 1 && out.stride(0) >= out.size(1) &&
         !out.is_alias_of(a) && !out.is_alias_of(b);
}

at::Tensor rounded_product(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& bias) {
  const at::Tensor product = at::empty({a.size(0), b.size(1)}, a.options());
  runtime::bfloat16_product(a, b, bias, /*adds=*/false, product);
  return product;
}

/// As many as kStripElements are of a matrix of `columns`.
int64_t rows_of_strip(int64_t columns) {
  return std::max<int64_t>(kStripElements / std::max<int64_t>(columns, 1), 1);
}

/// Whether oneDNN gets all of the left operand of a new product.
bool is_multiplied_at_once(const at::Tensor& a) {
  return a.is_contiguous() || a.numel() <= kMostCopied;
}

/// Calls write(first row, product) for strips of rows of a times b.
/// @param columns of the larger matrix that a strip is of.
template <typename Write>
void multiply_strips(
    const at::Tensor& a,
    const at::Tensor& b,
    int64_t columns,
    const Write& write) {
  const int64_t strip = rows_of_strip(columns);
  for (int64_t row = 0; row < a.size(0); row += strip) {
    const int64_t rows = std::min(strip, a.size(0) - row);
    write(row, multiply(a.narrow(0, row, rows), b, std::nullopt));
  }
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  const bool is_taken = takes(a, b);
  if (is_taken && rounds(a, b)) {
    return rounded_product(a, b, /*bias=*/{});
  }
  if (!is_taken || !in_use().onednn) {
    return at::cpu::mm(a, b);
  }
  if (is_multiplied_at_once(a)) {
    return multiply(a, b, std::nullopt);
  }
  const at::Tensor product = at::empty({a.size(0), b.size(1)}, a.options());
  multiply_strips(
      a,
      b,
      std::max(a.size(1), b.size(1)),
      [&](int64_t row, const at::Tensor& strip) {
        product.narrow(0, row, strip.size(0)).copy_(strip);
      });
  return product;
}

at::Tensor addmm(
    const at::Tensor& bias,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const bool is_linear = takes(a, b) && bias.dim() == 1 &&
                         is_dense_float(bias) && bias.is_contiguous() &&
                         bias.size(0) == b.size(1) && beta.equal(1) &&
                         alpha.equal(1);
  if (is_linear && rounds(a, b)) {
    return rounded_product(a, b, bias);
  }
  return is_linear && in_use().onednn ? multiply(a, b, bias)
                                      : at::cpu::addmm(bias, a, b, beta, alpha);
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const bool fits = takes(a, b) && is_dense_float(out) && out.dim() == 2 &&
                    out.size(0) == a.size(0) && out.size(1) == b.size(1);
  if (fits && rounds(a, b)) {
    if (!has_rows_apart_from(out, a, b)) {
      return out.copy_(rounded_product(a, b, /*bias=*/{}));
    }
    runtime::bfloat16_product(a, b, /*bias=*/{}, /*adds=*/false, out);
    return out;
  }
  return fits && in_use().onednn ? out.copy_(multiply(a, b, std::nullopt))
                                 : at::cpu::mm_out(out, a, b);
}

at::Tensor& addmm_(
    at::Tensor& sum,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const bool fits = takes(a, b) && is_dense_float(sum) && sum.dim() == 2 &&
                    sum.size(0) == a.size(0) && sum.size(1) == b.size(1) &&
                    beta.equal(1) && alpha.equal(1);
  if (fits && rounds(a, b)) {
    if (!has_rows_apart_from(sum, a, b)) {
      return sum.add_(rounded_product(a, b, /*bias=*/{}));
    }
    runtime::bfloat16_product(a, b, /*bias=*/{}, /*adds=*/true, sum);
    return sum;
  }
  if (!fits || !in_use().onednn) {
    return at::cpu::addmm_(sum, a, b, beta, alpha);
  }
  // So that the operand of the addition stays in the cache.
  multiply_strips(a, b, b.size(1), [&](int64_t row, const at::Tensor& strip) {
    sum.narrow(0, row, strip.size(0)).add_(strip);
  });
  return sum;
}

/// What the functions above take beside their results: oneDNN copies a left
/// operand that is not contiguous.
std::vector<at::Tensor> product_memory(
    const at::Tensor& a,
    const at::Tensor& b,
    runtime::ProductUse use) {
  const Libraries libraries = planned_or_in_use();
  if (!libraries.onednn || !takes(a, b) || rounds(a, b, libraries)) {
    return {};
  }
  const bool is_new = use == runtime::ProductUse::kNew;
  int64_t rows = a.size(0);
  if (use == runtime::ProductUse::kAdded) {
    rows = rows_of_strip(b.size(1));
  } else if (is_new && !is_multiplied_at_once(a)) {
    rows = rows_of_strip(std::max(a.size(1), b.size(1)));
  }
  const at::Tensor strip = a.narrow(0, 0, std::min(rows, a.size(0)));
  std::vector<at::Tensor> memory;
  if (!strip.is_contiguous()) {
    memory.push_back(at::empty(strip.sizes(), a.options()));
  }
  if (!is_new || strip.size(0) < a.size(0)) {
    memory.push_back(at::empty({strip.size(0), b.size(1)}, a.options()));
  }
  return memory;
}

/// MKL selects code by processor vendor, not by what the processor supports.
bool onednn_has_more_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

Libraries libraries_of(CpuMatmul choice) {
  const bool chooses =
      choice == CpuMatmul::kAuto || choice == CpuMatmul::kBfloat16;
  return {
      .onednn = choice == CpuMatmul::kOneDnn ||
                (chooses && find_linear() && onednn_has_more_instructions()),
      .bfloat16 = choice == CpuMatmul::kBfloat16};
}

runtime::ReplacedKernels& matmul_kernels() {
  static auto* const kernels =
      new runtime::ReplacedKernels([](torch::Library& library) {
        library.impl("mm", &mm);
        library.impl("mm.out", &mm_out);
        library.impl("addmm", &addmm);
        library.impl("addmm_", &addmm_);
      });
  return *kernels;
}

} // namespace

const char* name_of(CpuMatmul choice) {
  switch (choice) {
    case CpuMatmul::kLibTorch:
      return "libtorch";
    case CpuMatmul::kOneDnn:
      return "onednn";
    case CpuMatmul::kAuto:
      return "auto";
    case CpuMatmul::kBfloat16:
      return "bfloat16";
  }
  return "unknown";
}

CpuMatmul cpu_matmul() {
  const Libraries& libraries = in_use();
  return libraries.bfloat16 ? CpuMatmul::kBfloat16
         : libraries.onednn ? CpuMatmul::kOneDnn
                            : CpuMatmul::kLibTorch;
}

PlannedCpuMatmul::PlannedCpuMatmul(CpuMatmul choice) {
  const std::lock_guard lock(planned().mutex);
  ++planned().scopes;
  planned().libraries = libraries_of(choice);
  runtime::plan_cpu_products(&product_memory);
}

PlannedCpuMatmul::~PlannedCpuMatmul() {
  const std::lock_guard lock(planned().mutex);
  --planned().scopes;
}

CpuMatmul set_cpu_matmul(CpuMatmul choice) {
  TESSERA_CHECK(
      choice != CpuMatmul::kOneDnn || find_linear(),
      "this LibTorch was built without oneDNN, so oneDNN cannot be used for matrix products. Use \"libtorch\" or \"auto\".");
  TESSERA_CHECK(
      choice != CpuMatmul::kBfloat16 || runtime::has_bfloat16_products(),
      "this processor has no instructions for products in bfloat16 (AVX512-BF16), so \"bfloat16\" cannot be used for matrix products of the CPU. Use \"auto\".");
  in_use() = libraries_of(choice);
  runtime::plan_cpu_products(&product_memory);
  matmul_kernels().replace(in_use().onednn || in_use().bfloat16, at::kCPU);
  return cpu_matmul();
}

} // namespace tessera
