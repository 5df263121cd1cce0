// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/experts.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/expert_parallel/divided_experts.h"
#include "tessera/sharding/expert_parallel/expert_exchange.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>

namespace tessera::zoo {

namespace {

sharding::RouterOptions router_options(const ExpertsOptions& options) {
  return {
      options.experts_per_token, options.normalise, options.capacity_factor};
}

Communicator* expert_group(const LayerContext& context) {
  return context.experts() != nullptr ? context.experts()->group : nullptr;
}

} // namespace

ExpertsImpl::ExpertsImpl(
    const LayerContext& context,
    const ExpertsOptions& options)
    : context_(context), options_(options) {
  check(router_options(options), options.experts);
  const int64_t features = options.expert.features;
  router_ = Linear::undivided(
      *this,
      "router",
      context,
      {features, options.experts, false, 1, options.expert.deviation});
  const Communicator* group = expert_group(context_);
  const sharding::ExpertRange here =
      group == nullptr ? sharding::ExpertRange{0, options.experts}
                       : sharding::local_experts(
                             options.experts, group->rank(), group->size());
  const auto list = register_module(
      "experts",
      here.length == options.experts
          ? std::make_shared<torch::nn::Module>("Experts")
          : std::make_shared<sharding::DividedExperts>());
  for (int64_t e = 0; e < here.length; ++e) {
    experts_.push_back(list->register_module(
        std::to_string(here.begin + e), FeedForward(context, options.expert)));
  }
  if (options.shared) {
    shared_ = register_module("shared", FeedForward(context, *options.shared));
    shared_gate_ = Linear::undivided(
        *this,
        "shared_gate",
        context,
        {features, 1, false, 1, options.expert.deviation});
  }
}

at::Tensor ExpertsImpl::forward(const at::Tensor& hidden) {
  // Routers and experts see all tokens of the tensor-parallel ranks.
  const at::Tensor x = full_tensor(hidden);
  const at::Tensor tokens = x.flatten(0, -2);
  const at::Tensor logits = router_.forward(tokens);
  sharding::RouterOptions rule = router_options(options_);
  if (!is_training()) {
    // What a text yields must not depend on those beside it.
    rule.capacity_factor.reset();
  }
  const sharding::ExpertRouting routing = route_tokens(logits, rule);
  if (options_.keep_routing) {
    last_ = {logits, routing};
  }
  at::Tensor result = sharding::apply_experts(
      tokens,
      routing,
      options_.experts,
      expert_group(context_),
      [this](int64_t local, const at::Tensor& rows) {
        return experts_[static_cast<size_t>(local)]->forward(rows);
      });
  if (options_.shared) {
    result = result + at::sigmoid(shared_gate_.forward(tokens)) *
                          shared_->forward(tokens);
  }
  return context_.between(result.view_as(x));
}

RoutedTokens ExpertsImpl::take_routing() {
  RoutedTokens last = std::exchange(last_, {});
  TESSERA_CHECK(
      last.logits.defined(),
      "Experts::take_routing: there was no forward since the last call, or keep_routing is off");
  TESSERA_CHECK(
      last.logits.requires_grad() || !at::GradMode::is_enabled() ||
          !router_.weight().requires_grad(),
      "router losses need the router logits of their layers, which layers that are recomputed in backward do not keep; do not recompute layers with experts, or turn off output_router_logits");
  return last;
}

} // namespace tessera::zoo
