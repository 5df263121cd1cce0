// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/checkpointing/recomputed_operators.h"

#include "tessera/runtime/core/error.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

namespace nodes = torch::autograd::generated;
using torch::autograd::Edge;
using torch::autograd::Node;

/// The longest chain of operators of which only the first one's input is kept.
constexpr int kLongestChain = 3;

bool is_recomputable(const Edge& edge, int longest = kLongestChain) {
  const Node* const node = edge.function.get();
  if (node == nullptr || edge.input_nr != 0 || longest == 0) {
    return false;
  }
  if (dynamic_cast<const nodes::GeluBackward0*>(node) != nullptr ||
      dynamic_cast<const nodes::SiluBackward0*>(node) != nullptr) {
    return true;
  }
  if (dynamic_cast<const nodes::MulBackward0*>(node) != nullptr) {
    // A factor is kept if the other one requires a gradient. The only one that
    // does is not kept.
    const Edge& first = node->next_edge(0);
    const Edge& second = node->next_edge(1);
    return (first.is_valid() && second.is_valid()) ||
           is_recomputable(first.is_valid() ? first : second, longest - 1);
  }
  return false;
}

/// The result that leads to `edge`.
at::Tensor value_of(const Edge& edge) {
  Node* const node = edge.function.get();
  if (auto* gelu = dynamic_cast<nodes::GeluBackward0*>(node)) {
    return at::gelu(gelu->self_.unpack(), gelu->approximate);
  }
  if (auto* silu = dynamic_cast<nodes::SiluBackward0*>(node)) {
    return at::silu(silu->self_.unpack());
  }
  auto* mul = dynamic_cast<nodes::MulBackward0*>(node);
  TESSERA_CHECK(
      mul != nullptr,
      "recompute_operators: the result of {} cannot be recomputed",
      node->name());
  const Edge& first = mul->next_edge(0);
  const Edge& second = mul->next_edge(1);
  const at::Tensor a =
      second.is_valid() ? mul->self_.unpack() : value_of(first);
  const at::Tensor b =
      first.is_valid() ? mul->other_.unpack() : value_of(second);
  return at::mul(a, b);
}

struct Geometry {
  explicit Geometry(const at::Tensor& x)
      : sizes(x.sizes().vec()), strides(x.strides().vec()) {}

  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

/// A view of the result of a cheap operator, often all of it.
class RecomputedActivation final : public runtime::SavedActivation {
 public:
  RecomputedActivation(
      Edge edge,
      const at::Tensor& result,
      const at::Tensor& view)
      : edge_(std::move(edge)),
        result_(result),
        view_(view),
        offset_(view.storage_offset() - result.storage_offset()),
        type_(result.scalar_type()) {}

  at::Tensor give() override {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    at::Tensor value = value_of(edge_);
    if (value.sizes() != at::IntArrayRef(result_.sizes) ||
        value.strides() != at::IntArrayRef(result_.strides) ||
        value.scalar_type() != type_) {
      value = at::empty_strided(
                  result_.sizes, result_.strides, value.options().dtype(type_))
                  .copy_(value);
    }
    return value.as_strided(
        view_.sizes, view_.strides, value.storage_offset() + offset_);
  }

 private:
  Edge edge_;
  Geometry result_;
  Geometry view_;
  int64_t offset_; ///< of the view in the result
  at::ScalarType type_;
};

} // namespace

OperatorRecomputation::OperatorRecomputation(
    std::shared_ptr<runtime::ActivationSink> next)
    : next_(std::move(next)) {}

std::unique_ptr<runtime::SavedActivation> OperatorRecomputation::take(
    const at::Tensor& tensor,
    bool to_host) {
  const at::Tensor result = tensor.is_view() ? tensor._base() : tensor;
  if (result.layout() == at::kStrided && tensor.layout() == at::kStrided &&
      result.scalar_type() == tensor.scalar_type() &&
      result.is_non_overlapping_and_dense() && result.grad_fn() != nullptr) {
    Edge edge(result.grad_fn(), result.output_nr());
    if (is_recomputable(edge)) {
      return std::make_unique<RecomputedActivation>(
          std::move(edge), result, tensor);
    }
  }
  return next_ ? next_->take(tensor, to_host)
               : std::make_unique<runtime::PassedActivation>(tensor);
}

} // namespace tessera::sharding
