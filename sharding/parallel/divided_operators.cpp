// SPDX-License-Identifier: Apache-2.0
// Kernels of operators on partitioned weights ([Note: divided weights]).
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/recompute_scope.h"
#include "tessera/sharding/parallel/divided_tag.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/vocab_parallel_embedding.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/t.h>
#include <ATen/ops/transpose.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <optional>

namespace tessera::sharding {

namespace {

using Below = c10::impl::ExcludeDispatchKeyGuard;
const c10::DispatchKeySet kOurs{kDividedKey};

/// Returns the weight of a product x W^T, or null if autograd makes the product
/// of partitions: those are correct as they are.
/// @throws tessera::Error on an unsupported use.
const DividedParameter* weight_of_product(
    const at::Tensor& x,
    const at::Tensor& weight,
    bool should_be_transposed,
    const char* operation) {
  const DividedTag* tag = divided_tag(weight);
  const bool fits =
      tag != nullptr && tag->is_transposed == should_be_transposed;
  if (in_backward() && (!at::GradMode::is_enabled() || !fits)) {
    return nullptr;
  }
  const bool is_weight = weight.key_set().has(kDividedKey);
  const bool is_left = x.key_set().has(kDividedKey);
  if (!is_weight && !is_left) {
    return nullptr; // only the bias has the key
  }
  const DividedParameter* left = divided_parameter(x);
  TESSERA_CHECK(
      fits && !is_left,
      "{}: {} is divided by a tensor plan, which supports it only as W in x W^T. Leave its layer out of the plan.",
      operation,
      tag != nullptr    ? "'" + tag->what->name() + "'"
      : left != nullptr ? "'" + left->name() + "'"
                        : "a weight");
  return &*tag->what;
}

/// Returns the features of x with which the partition of a row-parallel layer
/// is multiplied.
at::Tensor own_features(const at::Tensor& x, const DividedParameter& what) {
  const DimSplit split = what.split();
  Communicator& group = *what.how.group;
  const int64_t found = x.size(-1);
  if (found == split.length(group.rank())) {
    return x;
  }
  TESSERA_CHECK(
      found == split.size(),
      "'{}' is divided as kRow and takes the {} of {} features that rank {} of '{}' has, or all of them; its input has sizes {}. Divide the layers before it as kColumn, with the same unit.",
      what.name(),
      split.length(group.rank()),
      split.size(),
      group.rank(),
      group.name(),
      x.sizes());
  return take_part(x, -1, split, group);
}

/// Computes x W^T; `product` multiplies with this rank's partition.
template <typename Product>
at::Tensor divided_product(
    const at::Tensor& x,
    const DividedParameter& what,
    const Product& product) {
  Communicator& group = *what.how.group;
  if (what.division == TensorDivision::kRow) {
    return leave_layer(product(own_features(x, what)), what.how);
  }
  const at::Tensor y = product(enter_layer(x, what.how));
  if (what.division == TensorDivision::kColumn || group.size() == 1) {
    return y;
  }
  // A copy, because layers add their bias in place, which autograd does not
  // allow for a view returned by a custom function.
  return gather_parts(y, -1, what.split(), group)
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor matmul(const at::Tensor& x, const at::Tensor& weight) {
  const Below below(kOurs);
  const DividedParameter* what = weight_of_product(x, weight, true, "matmul");
  const auto product = [&](const at::Tensor& own) {
    return at::matmul(own, weight);
  };
  return what == nullptr ? product(x) : divided_product(x, *what, product);
}

at::Tensor mm(const at::Tensor& x, const at::Tensor& weight) {
  const Below below(kOurs);
  const DividedParameter* what = weight_of_product(x, weight, true, "mm");
  const auto product = [&](const at::Tensor& own) {
    return at::mm(own, weight);
  };
  return what == nullptr ? product(x) : divided_product(x, *what, product);
}

at::Tensor addmm(
    const at::Tensor& bias,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const Below below(kOurs);
  const DividedParameter* what = weight_of_product(x, weight, true, "addmm");
  if (what == nullptr) {
    return at::addmm(bias, x, weight, beta, alpha);
  }
  if (what->division == TensorDivision::kColumn) {
    return divided_product(x, *what, [&](const at::Tensor& own) {
      return at::addmm(bias, own, weight, beta, alpha);
    });
  }
  const at::Tensor y = divided_product(
      x, *what, [&](const at::Tensor& own) { return at::mm(own, weight); });
  return y * alpha + (bias * beta).to(y.scalar_type());
}

at::Tensor linear(
    const at::Tensor& x,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  const Below below(kOurs);
  const DividedParameter* what = weight_of_product(x, weight, false, "linear");
  if (what == nullptr) {
    return at::linear(x, weight, bias);
  }
  const bool inside = what->division == TensorDivision::kColumn;
  const at::Tensor y = divided_product(x, *what, [&](const at::Tensor& own) {
    return at::linear(own, weight, inside ? bias : std::nullopt);
  });
  return inside || !bias || !bias->defined() ? y
                                             : y + bias->to(y.scalar_type());
}

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& tokens,
    int64_t padding_id,
    bool scale_grad_by_freq,
    bool sparse) {
  const Below below(kOurs);
  const DividedParameter* what = divided_parameter(weight);
  TESSERA_CHECK(
      what != nullptr && what->spec.divided_dim(kTensorAxis) == 0 &&
          !scale_grad_by_freq && !sparse,
      "embedding: {} is divided by a tensor plan; rows can be looked up only in a whole table that is divided by rows, without sparse and scale_grad_by_freq. Divide it as kVocab.",
      what == nullptr ? "a view of a weight" : "'" + what->name() + "'");
  return vocab_lookup(
      weight,
      tokens.to(at::kLong),
      what->split(),
      padding_id >= 0 ? padding_id : what->padding_id,
      what->how,
      what->name().c_str());
}

at::Tensor with_tag(const at::Tensor& view, const DividedTag* of) {
  if (of != nullptr) {
    set_divided_tag(view, of->what, !of->is_transposed);
  }
  return view;
}

at::Tensor t(const at::Tensor& weight) {
  const Below below(kOurs);
  return with_tag(
      at::t(weight), weight.dim() == 2 ? divided_tag(weight) : nullptr);
}

at::Tensor transpose(const at::Tensor& weight, int64_t dim0, int64_t dim1) {
  const Below below(kOurs);
  const bool swaps = weight.dim() == 2 && (dim0 - dim1) % 2 != 0;
  return with_tag(
      at::transpose(weight, dim0, dim1), swaps ? divided_tag(weight) : nullptr);
}

/// Tensor::set_data() calls this before it replaces the contents of a tensor:
/// the new contents become a partition of the same parameter.
bool has_compatible_shallow_copy_type(
    const at::Tensor& tensor,
    const at::Tensor& from) {
  const Below below(kOurs);
  const DividedTag* tag = divided_tag(tensor);
  if (tag != nullptr && divided_tag(from) == nullptr) {
    TESSERA_CHECK(
        from.sizes() == tensor.sizes(),
        "set_data: '{}' is divided by a tensor plan, and this rank's part of it has sizes {}; the new tensor has {}. Load and replace whole weights before apply_tensor_plan().",
        tag->what->name(),
        tensor.sizes(),
        from.sizes());
    set_divided_tag(from, tag->what, tag->is_transposed);
  }
  return at::_has_compatible_shallow_copy_type(tensor, from);
}

/// For operators that would mix a partition with whole tensors.
void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TESSERA_CHECK(
      in_backward(),
      "{}: this operator does not support a weight that is divided by a tensor plan; only linear, matmul, mm, addmm and embedding do. Leave its layer out of the plan.",
      op.schema().name());
  const Below below(kOurs);
  op.callBoxed(stack);
}

void register_all() {
  // Never destroyed: partitioned weights may outlive everything.
  static auto* fallback = new torch::Library(
      torch::Library::IMPL, "_", kDividedKey, __FILE__, __LINE__);
  static auto* operators = new torch::Library(
      torch::Library::IMPL, "aten", kDividedKey, __FILE__, __LINE__);
  try {
    fallback->fallback(torch::CppFunction::makeFallthrough());
  } catch (const c10::Error& error) {
    TESSERA_FAIL(
        "apply_tensor_plan: another library in this process has taken the dispatch key DeferredInit (two copies of Tessera?): {}",
        error.what_without_backtrace());
  }
  operators->impl("matmul", TORCH_FN(matmul));
  operators->impl("mm", TORCH_FN(mm));
  operators->impl("addmm", TORCH_FN(addmm));
  operators->impl("linear", TORCH_FN(linear));
  operators->impl("embedding", TORCH_FN(embedding));
  operators->impl("t", TORCH_FN(t));
  operators->impl("transpose.int", TORCH_FN(transpose));
  operators->impl(
      "_has_compatible_shallow_copy_type",
      TORCH_FN(has_compatible_shallow_copy_type));
  for (const char* name :
       {"bmm",
        "mv",
        "addmv",
        "addbmm",
        "baddbmm",
        "einsum",
        "bilinear",
        "tensordot",
        "index_select",
        "embedding_bag",
        "_native_multi_head_attention"}) {
    operators->impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

} // namespace

void register_divided_operators() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

} // namespace tessera::sharding
