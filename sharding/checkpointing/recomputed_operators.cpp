// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/checkpointing/recomputed_operators.h"

#include "tessera/runtime/kernels/gated_activation.h"

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
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

namespace nodes = torch::autograd::generated;
using torch::autograd::Edge;
using torch::autograd::Node;

/// The longest chain of operators of which only the first one's input is kept.
constexpr int kLongestChain = 3;

/// How the result that an edge leads from is computed from what nodes keep. It
/// is found while the graph is made: split backwards of pipelines change edges
/// later.
class Recipe {
 public:
  /// @return nothing if the result cannot be computed again.
  static std::optional<Recipe> of(const Edge& edge, int longest) {
    Node* const node = edge.function.get();
    if (node == nullptr || edge.input_nr != 0 || longest == 0) {
      return std::nullopt;
    }
    if (dynamic_cast<nodes::GeluBackward0*>(node) != nullptr ||
        dynamic_cast<nodes::SiluBackward0*>(node) != nullptr ||
        runtime::is_gated_activation(*node)) {
      return Recipe(edge.function);
    }
    // ReLU keeps its result itself, so that there is a recipe for what is made
    // of it only.
    if (longest < kLongestChain &&
        dynamic_cast<nodes::ReluBackward0*>(node) != nullptr) {
      return Recipe(edge.function);
    }
    if (dynamic_cast<nodes::MulBackward0*>(node) == nullptr) {
      return std::nullopt;
    }
    // A factor is kept if the other one requires a gradient. The only one that
    // does is not kept.
    Recipe product(edge.function);
    product.keeps_first_ = node->next_edge(1).is_valid();
    product.keeps_second_ = node->next_edge(0).is_valid();
    if (!product.keeps_first_ || !product.keeps_second_) {
      auto factor =
          of(node->next_edge(product.keeps_first_ ? 1 : 0), longest - 1);
      if (!factor) {
        return std::nullopt;
      }
      product.factor_.push_back(*std::move(factor));
    }
    return product;
  }

  at::Tensor value() const {
    if (runtime::is_gated_activation(*node_)) {
      return runtime::gated_activation_again(*node_);
    }
    if (auto* gelu = dynamic_cast<nodes::GeluBackward0*>(node_.get())) {
      return at::gelu(gelu->self_.unpack(), gelu->approximate);
    }
    if (auto* silu = dynamic_cast<nodes::SiluBackward0*>(node_.get())) {
      return at::silu(silu->self_.unpack());
    }
    if (auto* relu = dynamic_cast<nodes::ReluBackward0*>(node_.get())) {
      return relu->result_.unpack(node_);
    }
    auto* mul = dynamic_cast<nodes::MulBackward0*>(node_.get());
    return at::mul(
        keeps_first_ ? mul->self_.unpack() : factor_.front().value(),
        keeps_second_ ? mul->other_.unpack() : factor_.front().value());
  }

 private:
  explicit Recipe(std::shared_ptr<Node> node) : node_(std::move(node)) {}

  std::shared_ptr<Node> node_;
  /// Of a product: which factors its node keeps, and the one that it does not.
  bool keeps_first_ = false;
  bool keeps_second_ = false;
  std::vector<Recipe> factor_;
};

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
      Recipe recipe,
      const at::Tensor& result,
      const at::Tensor& view)
      : recipe_(std::move(recipe)),
        result_(result),
        view_(view),
        offset_(view.storage_offset() - result.storage_offset()),
        type_(result.scalar_type()) {}

  at::Tensor give() override {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    at::Tensor value = recipe_.value();
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
  Recipe recipe_;
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
  const at::Tensor result =
      tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  // Without a gradient of its own, the tensor may outlive what the node keeps;
  // changed in place under NoGradGuard, it is not what the node has made.
  if (tensor.requires_grad() && result._version() == 0 &&
      result.layout() == at::kStrided && tensor.layout() == at::kStrided &&
      result.scalar_type() == tensor.scalar_type() &&
      result.is_non_overlapping_and_dense() && result.grad_fn() != nullptr) {
    auto recipe = Recipe::of(
        Edge(result.grad_fn(), static_cast<uint32_t>(result.output_nr())),
        kLongestChain);
    if (recipe) {
      return std::make_unique<RecomputedActivation>(
          *std::move(recipe), result, tensor);
    }
  }
  return next_ ? next_->take(tensor, to_host)
               : std::make_unique<runtime::PassedActivation>(tensor);
}

} // namespace tessera::sharding
