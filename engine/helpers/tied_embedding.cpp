// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/helpers/tied_embedding.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera {

namespace {

/// whole[ids[i]] += rows[i] for all i. Of dtypes less precise than float32, the
/// rows of an id are added up in float32 first: the gradient of a frequent id
/// would stop growing. Nothing synchronizes.
void add_rows(at::Tensor& full, const at::Tensor& ids, const at::Tensor& rows) {
  if (!c10::isReducedFloatingType(full.scalar_type()) || ids.numel() == 0) {
    full.index_add_(0, ids, rows);
    return;
  }
  const auto [sorted, order] = ids.sort();
  // Numbers of the distinct ids, in ascending order: [0, 0, 1, 2, 2, 2, ...].
  const at::Tensor number = at::constant_pad_nd(
      sorted.slice(0, 1).ne(sorted.slice(0, 0, -1)).cumsum(0), {1, 0});
  const at::Tensor sums =
      at::zeros(rows.sizes(), rows.options().dtype(at::kFloat))
          .index_add_(0, number, rows.index_select(0, order).to(at::kFloat));
  // The sums after the last distinct id are zeros, for id 0.
  const at::Tensor distinct = at::zeros_like(ids).scatter_(0, number, sorted);
  full.index_add_(0, distinct, sums.to(full.scalar_type()));
}

class Tied : public torch::autograd::Function<Tied> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& weight,
      const at::Tensor& ids,
      int64_t padding_idx) {
    context->save_for_backward({ids});
    context->saved_data["padding_idx"] = padding_idx;
    context->saved_data["classes"] = weight.size(0);
    context->set_materialize_grads(false);
    // An alias: it shares the weight's storage, and its page.
    return {at::embedding(weight, ids), weight.detach()};
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const at::Tensor& rows = gradients[0];
    at::Tensor full = gradients[1];
    if (!rows.defined()) {
      return {full, {}, {}};
    }
    const at::Tensor ids = context->get_saved_variables()[0].reshape({-1});
    const int64_t width = rows.size(-1);
    if (!full.defined()) {
      full = at::zeros(
          {context->saved_data["classes"].toInt(), width}, rows.options());
    } else if (!is_ours_alone(full)) {
      full = full.clone();
    }
    at::Tensor added = rows.reshape({-1, width});
    const int64_t padding_idx = context->saved_data["padding_idx"].toInt();
    if (padding_idx >= 0) {
      added = added.masked_fill(ids.eq(padding_idx).unsqueeze(1), 0);
    }
    add_rows(full, ids, added);
    return {full, {}, {}};
  }

 private:
  /// True if only the engine's list and this function hold the tensor, without
  /// views, so that nothing else can read it.
  static bool is_ours_alone(const at::Tensor& tensor) {
    constexpr size_t kListAndFunction = 2;
    return tensor.use_count() <= kListAndFunction &&
           tensor.storage().use_count() == 1;
  }
};

} // namespace

TiedEmbedding tied_embedding(
    const at::Tensor& weight,
    const at::Tensor& ids,
    int64_t padding_idx) {
  TESSERA_CHECK(
      weight.dim() == 2 && weight.is_floating_point() &&
          ids.scalar_type() == at::kLong,
      "tied_embedding: weight is {} of shape {} and ids {}; weight must be a floating-point matrix, and ids must be int64",
      weight.scalar_type(),
      weight.sizes(),
      ids.scalar_type());
  const auto both = Tied::apply(weight, ids, padding_idx);
  return {both[0], both[1]};
}

} // namespace tessera
