// SPDX-License-Identifier: Apache-2.0
// Products with partitioned weights ([Note: divided weights]) and with DTensors
// ([Note: DTensors]), and the registration of all rules.
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/interception/recompute_scope.h"
#include "tessera/sharding/tensor_parallel/divided_tag.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"
#include "tessera/sharding/tensor_parallel/overlapped_linear.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "tessera/sharding/tensor_parallel/vocab_range.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_has_compatible_shallow_copy_type.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <utility>

namespace tessera::sharding {

namespace {

using SharedTensorParallel = std::shared_ptr<const TensorParallel>;

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
  const DividedParameter* left = divided_parameter(x);
  const auto is_weight = [](const at::Tensor& tensor) {
    return tensor.key_set().has(kDividedKey) && !is_dtensor(tensor);
  };
  if (!is_weight(weight) && !is_weight(x)) {
    return nullptr;
  }
  TESSERA_CHECK(
      fits && !is_weight(x),
      "{}: {} is divided by a tensor plan, which supports it only as W in x W^T. Leave its layer out of the plan.",
      operation,
      tag != nullptr    ? "'" + tag->parameter->name() + "'"
      : left != nullptr ? "'" + left->name() + "'"
                        : "a weight");
  return &*tag->parameter;
}

/// An activation at the border of a partitioned layer, and how it is placed
/// there: whole, or this rank's part of the sequences.
struct Between {
  at::Tensor x;
  TensorParallel tp;
};

/// Whether `split` is how sequences are divided between layers.
bool divides_sequences(const DTensorImpl& x, const TensorParallel& tp) {
  return tp.sequence && x.divided()->dim == tp.sequence_dim &&
         x.divided()->split.is_even() && x.dim() > tp.sequence_dim + 1;
}

/// The input of a column-parallel layer.
Between entering(const at::Tensor& x, const TensorParallel& tp) {
  const DTensorImpl* wrapper = dtensor(x);
  Between input{x, tp};
  input.tp.sequence = wrapper != nullptr && wrapper->divided() &&
                      &wrapper->group() == tp.group &&
                      divides_sequences(*wrapper, tp);
  input.x = input.tp.sequence ? local_of(x) : full_tensor(x);
  return input;
}

/// How the output of a layer leaves it: as parts of the sequences if those can
/// be divided equally.
/// @param sizes of the whole output [..., features].
TensorParallel leaving(at::IntArrayRef sizes, const TensorParallel& tp) {
  TensorParallel out = tp;
  const auto dims = static_cast<int64_t>(sizes.size());
  out.sequence =
      tp.sequence && tp.sequence_dim + 1 < dims &&
      sizes[static_cast<size_t>(tp.sequence_dim)] > 0 &&
      sizes[static_cast<size_t>(tp.sequence_dim)] % tp.group->size() == 0;
  return out;
}

/// What has left a layer, as the model's code sees it.
at::Tensor left(
    const at::Tensor& y,
    const TensorParallel& out,
    const SharedTensorParallel& tp) {
  if (!out.sequence) {
    return y;
  }
  return make_dtensor(
      y, even_parts(y, tp->sequence_dim, tp->group->size()), tp);
}

/// Returns the features of x with which the partition of a row-parallel layer
/// is multiplied.
at::Tensor local_features(
    const at::Tensor& x,
    const DividedParameter& parameter) {
  TESSERA_CHECK(
      x.size(-1) == parameter.split().size(),
      "'{}' is divided as kRow and takes {} features; its input has sizes {}.",
      parameter.name(),
      parameter.split().size(),
      x.sizes());
  const DTensorImpl* wrapper = divided_dtensor(x);
  const bool is_own = wrapper != nullptr && wrapper->dim_from_end() == -1 &&
                      same_parts(wrapper->divided()->split, parameter.split());
  return is_own
             ? local_of(x)
             : take_part(
                   full_tensor(x), -1, parameter.split(), *parameter.tp->group);
}

/// Returns the result of a column-parallel layer as the model's code sees it.
at::Tensor column_result(
    const at::Tensor& y,
    const DividedParameter& parameter) {
  if (parameter.division != TensorDivision::kColumnGathered) {
    return make_dtensor(
        y, DividedDim{y.dim() - 1, parameter.split()}, parameter.tp);
  }
  if (parameter.tp->group->size() == 1) {
    return y;
  }
  // A copy, because layers add their bias in place, which autograd does not
  // allow for a view returned by a custom function.
  return gather_parts(y, -1, parameter.split(), *parameter.tp->group)
      .clone(at::MemoryFormat::Contiguous);
}

std::vector<int64_t> with_features(const at::Tensor& x, int64_t features) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = features;
  return sizes;
}

/// Computes x W^T; `product` multiplies with this rank's partition.
template <typename Product>
at::Tensor divided_product(
    const at::Tensor& x,
    const DividedParameter& parameter,
    const Product& product) {
  if (parameter.division == TensorDivision::kRow) {
    const TensorParallel out =
        leaving(with_features(x, parameter.spec.sizes[0]), *parameter.tp);
    return left(
        leave_layer(product(local_features(x, parameter)), out),
        out,
        parameter.tp);
  }
  const Between input = entering(x, *parameter.tp);
  return column_result(product(enter_layer(input.x, input.tp)), parameter);
}

// Products of operands of which any may be a DTensor.

/// Computes a b, matrices or batches of them.
template <typename Product>
at::Tensor product_of(
    const at::Tensor& a,
    const at::Tensor& b,
    const Product& product) {
  const DTensorImpl* left = divided_dtensor(a);
  const DTensorImpl* right = divided_dtensor(b);
  if ((left == nullptr && right == nullptr) || a.dim() < 2 || b.dim() < 2) {
    return product(full_tensor(a), full_tensor(b));
  }
  Communicator& group = (left != nullptr ? left : right)->group();
  const auto full = [&](const at::Tensor& x) {
    return shared(full_tensor(x), group);
  };
  // Dimensions of batches: both operands are divided alike.
  for (const DTensorImpl* like : {left, right}) {
    if (like != nullptr && like->dim_from_end() < -2) {
      const int64_t dim = like->dim_from_end();
      const DimSplit& split = like->divided()->split;
      return make_dtensor_like(
          product(operand(a, dim, split, group), operand(b, dim, split, group)),
          dim,
          *like);
    }
  }
  // Dimensions that are summed over: a summand on each rank.
  for (const DTensorImpl* like : {left, right}) {
    if (like != nullptr && like->dim_from_end() == (like == left ? -1 : -2)) {
      const DimSplit& split = like->divided()->split;
      return reduce_over_group(
          product(operand(a, -1, split, group), operand(b, -2, split, group)),
          group);
    }
  }
  if (left != nullptr) { // rows of a
    return make_dtensor_like(product(local_of(a), full(b)), -2, *left);
  }
  return make_dtensor_like(product(full(a), local_of(b)), -1, *right);
}

at::Tensor matmul(const at::Tensor& x, const at::Tensor& weight) {
  const DTensorGuard parts;
  const DividedParameter* parameter =
      weight_of_product(x, weight, true, "matmul");
  if (parameter == nullptr) {
    return product_of(x, weight, [](const at::Tensor& a, const at::Tensor& b) {
      return at::matmul(a, b);
    });
  }
  return divided_product(x, *parameter, [&](const at::Tensor& local) {
    return at::matmul(local, weight);
  });
}

at::Tensor mm(const at::Tensor& x, const at::Tensor& weight) {
  const DTensorGuard parts;
  const DividedParameter* parameter = weight_of_product(x, weight, true, "mm");
  if (parameter == nullptr) {
    return product_of(x, weight, [](const at::Tensor& a, const at::Tensor& b) {
      return at::mm(a, b);
    });
  }
  return divided_product(x, *parameter, [&](const at::Tensor& local) {
    return at::mm(local, weight);
  });
}

at::Tensor batched(const at::Tensor& a, const at::Tensor& b) {
  const DTensorGuard parts;
  weight_of_product(a, b, true, "bmm");
  return product_of(a, b, [](const at::Tensor& x, const at::Tensor& y) {
    return at::bmm(x, y);
  });
}

/// beta c + alpha a b, by operators that see DTensors.
at::Tensor added_product(
    const at::Tensor& c,
    const at::Tensor& product,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const at::Tensor scaled = alpha.equal(1) ? product : product * alpha;
  return beta.equal(0)
             ? scaled
             : scaled +
                   (beta.equal(1) ? c : c * beta).to(product.scalar_type());
}

bool has_dtensor(std::initializer_list<at::Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), is_dtensor);
}

at::Tensor addmm(
    const at::Tensor& bias,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  at::Tensor product;
  {
    const DTensorGuard parts;
    const DividedParameter* parameter =
        weight_of_product(x, weight, true, "addmm");
    if (parameter == nullptr && !has_dtensor({bias, x, weight})) {
      return at::addmm(bias, x, weight, beta, alpha);
    }
    if (parameter != nullptr &&
        parameter->division == TensorDivision::kColumn &&
        divided_parameter(bias) != nullptr) {
      return divided_product(x, *parameter, [&](const at::Tensor& local) {
        return at::addmm(bias, local, weight, beta, alpha);
      });
    }
    product =
        parameter != nullptr
            ? divided_product(
                  x,
                  *parameter,
                  [&](const at::Tensor& local) {
                    return at::mm(local, weight);
                  })
            : product_of(
                  x, weight, [](const at::Tensor& a, const at::Tensor& b) {
                    return at::mm(a, b);
                  });
  }
  return added_product(bias, product, beta, alpha);
}

at::Tensor baddbmm(
    const at::Tensor& c,
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  if (!has_dtensor({c, a, b})) {
    const DTensorGuard parts;
    return at::baddbmm(c, a, b, beta, alpha);
  }
  return added_product(c, batched(a, b), beta, alpha);
}

/// A layer that every rank has whole.
at::Tensor full_linear(
    const at::Tensor& x,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  const DTensorImpl* wrapper = divided_dtensor(x);
  if (wrapper == nullptr || wrapper->dim_from_end() == -1) {
    return at::linear(full_tensor(x), weight, bias);
  }
  return make_dtensor_like(
      at::linear(
          local_of(x),
          shared(weight, wrapper->group()),
          bias ? shared(*bias, wrapper->group()) : at::Tensor()),
      wrapper->dim_from_end(),
      *wrapper);
}

at::Tensor linear(
    const at::Tensor& x,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  at::Tensor y;
  {
    const DTensorGuard parts;
    const DividedParameter* parameter =
        weight_of_product(x, weight, false, "linear");
    if (parameter == nullptr) {
      return full_linear(x, weight, bias);
    }
    const bool has_rows = x.dim() >= 2;
    if (parameter->division == TensorDivision::kRow) {
      const TensorParallel out =
          leaving(with_features(x, weight.size(0)), *parameter->tp);
      const at::Tensor local = local_features(x, *parameter);
      y = left(
          has_rows ? leave_linear(local, weight, out)
                   : leave_layer(at::linear(local, weight), out),
          out,
          parameter->tp);
    } else {
      const bool inside =
          parameter->division != TensorDivision::kColumnGathered;
      const Between input = entering(x, *parameter->tp);
      const at::Tensor local_bias =
          inside && bias
              ? operand(*bias, -1, parameter->split(), *parameter->tp->group)
              : at::Tensor();
      y = column_result(
          has_rows
              ? enter_linear(input.x, {{weight, local_bias}}, input.tp)[0]
              : at::linear(enter_layer(input.x, input.tp), weight, local_bias),
          *parameter);
      if (inside) {
        return y;
      }
    }
  }
  return bias && bias->defined() ? y + bias->to(y.scalar_type()) : y;
}

} // namespace

DividedOperands divided_operands(
    const at::Tensor& x,
    const at::Tensor& bias,
    const DividedParameter& parameter) {
  const DTensorGuard parts;
  const Between input = entering(x, *parameter.tp);
  return {
      enter_layer(input.x, input.tp),
      bias.defined()
          ? operand(bias, -1, parameter.split(), *parameter.tp->group)
          : bias};
}

namespace {

/// Looks up the tokens whose rows this rank has, and sums over the ranks.
at::Tensor vocab_lookup(
    const at::Tensor& rows,
    const at::Tensor& tokens,
    const DividedParameter& parameter,
    int64_t padding_id,
    const TensorParallel& out) {
  const DimSplit vocab = parameter.split();
  check_tokens(tokens, vocab.size(), parameter.name().c_str());
  const int rank = out.group->rank();
  const LocalTokens local = local_tokens(tokens, vocab, rank);
  const int64_t padding = padding_id - vocab.begin(rank);
  const bool is_here = padding >= 0 && padding < vocab.length(rank);
  const at::Tensor found =
      at::embedding(rows, local.rows, is_here ? padding : -1);
  return leave_layer(found.masked_fill(local.elsewhere.unsqueeze(-1), 0), out);
}

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& tokens,
    int64_t padding_id,
    bool scale_grad_by_freq,
    bool sparse) {
  const DTensorGuard parts;
  if (!weight.key_set().has(kDividedKey)) {
    return at::embedding(
        weight, full_tensor(tokens), padding_id, scale_grad_by_freq, sparse);
  }
  const DividedParameter* parameter = divided_parameter(weight);
  TESSERA_CHECK(
      parameter != nullptr && parameter->spec.divided_dim(kTensorAxis) == 0 &&
          !scale_grad_by_freq && !sparse,
      "embedding: {} is divided by a tensor plan; rows can be looked up only in a whole table that is divided by rows, without sparse and scale_grad_by_freq. Divide it as kVocab.",
      parameter == nullptr ? "a view of a weight"
                           : "'" + parameter->name() + "'");
  std::vector<int64_t> sizes = tokens.sizes().vec();
  sizes.push_back(weight.size(1));
  const TensorParallel out = leaving(sizes, *parameter->tp);
  const at::Tensor ids = full_tensor(tokens);
  return left(
      vocab_lookup(
          weight,
          ids.scalar_type() == at::kInt ? ids.to(at::kLong) : ids,
          *parameter,
          padding_id >= 0 ? padding_id : parameter->padding_id,
          out),
      out,
      parameter->tp);
}

/// Tensor::set_data() calls this before it replaces the contents of a tensor:
/// the new contents become a partition of the same parameter.
bool has_compatible_shallow_copy_type(
    const at::Tensor& tensor,
    const at::Tensor& from) {
  const DTensorGuard parts;
  const DividedTag* tag = divided_tag(tensor);
  if (tag != nullptr && divided_tag(from) == nullptr) {
    TESSERA_CHECK(
        from.sizes() == tensor.sizes(),
        "set_data: '{}' is divided by a tensor plan, and this rank's part of it has sizes {}; the new tensor has {}. Load and replace whole weights before apply_tensor_plan().",
        tag->parameter->name(),
        tensor.sizes(),
        from.sizes());
    set_divided_tag(from, tag->parameter, tag->is_transposed, tag->owner);
  }
  return at::_has_compatible_shallow_copy_type(tensor, from);
}

at::Tensor base_of(const at::Tensor& x) {
  return x.is_view() ? at::Tensor(x._base()) : x;
}

/// The tag of `x`, or of the parameter that it is a view of; null if neither
/// has one.
const DividedTag* tag_of_view(const at::Tensor& x) {
  const DividedTag* tag = divided_tag(x);
  return tag == nullptr ? divided_tag(base_of(x)) : tag;
}

/// Whether `x` is a partition or a view of one, and no tensor that detach()
/// made of it, by which code says that the part is meant.
bool is_of_parameter(const at::Tensor& x) {
  const at::Tensor base = base_of(x);
  const DividedTag* tag = divided_tag(base);
  return x.requires_grad() ||
         (tag != nullptr && tag->owner == base.unsafeGetTensorImpl());
}

[[noreturn]] void fail_on_weight(const at::Tensor& x, const char* operation) {
  const DividedTag* tag = tag_of_view(x);
  TESSERA_FAIL(
      "{}: this operator does not support {}, which is divided by a tensor plan; only linear, matmul, mm, addmm and embedding do. Leave its layer out of the plan. (weight.detach() is this rank's part; of a wrapped module, Engine::gather(), with GatherScope::full(), and Engine::for_each_parameter() have the whole.)",
      operation,
      tag == nullptr ? "a view of a weight"
                     : "'" + tag->parameter->name() + "'");
}

/// For operators that would mix a partition with whole tensors; others get the
/// general rule.
void refuse_weights(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  for_each_tensor(op, *stack, [&](const at::Tensor& x, size_t) {
    check_no_weight(x, op.schema().name().c_str());
  });
  general_rule(op, keys, stack);
}

/// Casts of modules, which Module::to() makes parameter by parameter, are of
/// parts; what casts a weight of a wrapped module takes the part for the whole.
void cast_rule(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  for_each_tensor(op, *stack, [&](const at::Tensor& x, size_t) {
    if (x.defined() && has_page_key(x)) {
      check_records_no_weight(x, op.schema().name().c_str());
    }
  });
  elementwise_rule(op, keys, stack);
}

void register_product_rules(torch::Library& library) {
  library.impl("matmul", TORCH_FN(matmul));
  library.impl("mm", TORCH_FN(mm));
  library.impl("bmm", TORCH_FN(batched));
  library.impl("addmm", TORCH_FN(addmm));
  library.impl("baddbmm", TORCH_FN(baddbmm));
  library.impl("linear", TORCH_FN(linear));
  library.impl("embedding", TORCH_FN(embedding));
  library.impl(
      "_has_compatible_shallow_copy_type",
      TORCH_FN(has_compatible_shallow_copy_type));
  for (const char* name :
       {"mv",
        "addmv",
        "addbmm",
        "einsum",
        "bilinear",
        "tensordot",
        "embedding_bag",
        "_native_multi_head_attention"}) {
    library.impl(
        name, torch::CppFunction::makeFromBoxedFunction<&refuse_weights>());
  }
}

void register_all() {
  // Never destroyed: partitioned weights may outlive everything.
  static auto* fallback = new torch::Library(
      torch::Library::IMPL, "_", kDividedKey, __FILE__, __LINE__);
  static auto* operators = new torch::Library(
      torch::Library::IMPL, "aten", kDividedKey, __FILE__, __LINE__);
  try {
    fallback->fallback(
        torch::CppFunction::makeFromBoxedFunction<&general_rule>());
  } catch (const c10::Error& error) {
    TESSERA_FAIL(
        "apply_tensor_plan: another library in this process has taken the dispatch key DeferredInit (two copies of Tessera?): {}",
        error.what_without_backtrace());
  }
  register_product_rules(*operators);
  register_view_rules(*operators);
  register_reduction_rules(*operators);
  register_attention_rule(*operators);
  register_random_rules(*operators);
  register_loss_rules(*operators);
  // They have no tag that says so.
  for (const char* name :
       {"detach",
        "alias",
        "contiguous",
        "copy_",
        "zero_",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "fill_.Scalar",
        "fill_.Tensor",
        "leaky_relu_",
        "elu_",
        "masked_fill_.Scalar",
        "masked_fill_.Tensor"}) {
    operators->impl(
        name, torch::CppFunction::makeFromBoxedFunction<&elementwise_rule>());
  }
  operators->impl(
      "_to_copy", torch::CppFunction::makeFromBoxedFunction<&cast_rule>());
  for (const char* name : {"leaky_relu", "elu"}) {
    operators->impl(
        name,
        torch::CppFunction::makeFromBoxedFunction<&checked_elementwise_rule>());
  }
}

/// The common description of column layers that may be computed together; null
/// if they may not.
const DividedParameter* common_columns(
    const at::Tensor& x,
    const std::vector<LinearWeights>& layers) {
  const DividedParameter* first = nullptr;
  for (const LinearWeights& layer : layers) {
    const DividedParameter* parameter = divided_parameter(layer.weight);
    if (parameter == nullptr || x.dim() < 2 ||
        parameter->division != TensorDivision::kColumn ||
        (first != nullptr && parameter->tp->group != first->tp->group)) {
      return nullptr;
    }
    first = first == nullptr ? parameter : first;
  }
  return first;
}

} // namespace

void check_no_weight(const at::Tensor& x, const char* operation) {
  if (!in_backward() && x.defined() && !is_dtensor(x) &&
      x.key_set().has(kDividedKey)) {
    fail_on_weight(x, operation);
  }
}

void check_records_no_weight(const at::Tensor& x, const char* operation) {
  if (!x.defined() || !x.key_set().has(kDividedKey) || is_dtensor(x)) {
    return;
  }
  // Of a wrapped module a part is never mistaken for the whole, frozen or not,
  // as by a norm in a gather scope.
  if (has_page_key(x) ? !is_of_parameter(x)
                      : !at::GradMode::is_enabled() || !x.requires_grad()) {
    return;
  }
  const DividedTag* tag = tag_of_view(x);
  const bool is_of_one =
      tag != nullptr && tag->parameter->tp->group->size() == 1;
  if (!is_of_one && (!in_backward() || in_recomputation())) {
    fail_on_weight(x, operation);
  }
}

void register_divided_operators() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

} // namespace tessera::sharding

namespace tessera {

std::vector<at::Tensor> linear_each(
    const at::Tensor& x,
    const std::vector<sharding::LinearWeights>& layers) {
  using namespace sharding;
  const DividedParameter* common = common_columns(x, layers);
  std::vector<at::Tensor> results;
  if (common == nullptr) {
    for (const LinearWeights& layer : layers) {
      results.push_back(at::linear(x, layer.weight, layer.bias));
    }
    return results;
  }
  const DTensorGuard parts;
  const Between input = entering(x, *common->tp);
  std::vector<LinearWeights> local;
  for (const LinearWeights& layer : layers) {
    const DividedParameter& parameter = *divided_parameter(layer.weight);
    local.push_back(
        {layer.weight,
         operand(layer.bias, -1, parameter.split(), *parameter.tp->group)});
  }
  results = enter_linear(input.x, local, input.tp);
  for (size_t i = 0; i < layers.size(); ++i) {
    results[i] =
        column_result(results[i], *divided_parameter(layers[i].weight));
  }
  return results;
}

} // namespace tessera
