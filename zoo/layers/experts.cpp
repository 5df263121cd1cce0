// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/experts.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <string>

namespace tessera::zoo {

ExpertsImpl::ExpertsImpl(
    const LayerContext& context,
    const ExpertsOptions& options)
    : options_(options) {
  TESSERA_CHECK(
      options.experts_per_token >= 1 &&
          options.experts_per_token <= options.experts,
      "a token uses ",
      options.experts_per_token,
      " of ",
      options.experts,
      " experts; it must be at least one and not more than there are");
  TESSERA_CHECK(
      context.parallel() == nullptr || !context.parallel()->sequence,
      "experts are not implemented under sequence parallelism; switch it off");
  const int64_t features = options.expert.features;
  router_ = Linear::undivided(
      *this,
      "router",
      context,
      {features, options.experts, false, 1, options.expert.deviation});
  torch::nn::ModuleList list =
      register_module("experts", torch::nn::ModuleList());
  for (int64_t e = 0; e < options.experts; ++e) {
    experts_.emplace_back(context, options.expert);
    list->push_back(experts_.back().ptr());
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

at::Tensor ExpertsImpl::forward(const at::Tensor& x) {
  const at::Tensor tokens = x.flatten(0, -2);
  const at::Tensor shares =
      at::softmax(router_.forward(tokens), -1, at::kFloat);
  auto [weights, chosen] = at::topk(shares, options_.experts_per_token, -1);
  if (options_.normalise) {
    weights = weights / weights.sum(-1, /*keepdim=*/true);
  }
  weights = weights.to(x.scalar_type());
  at::Tensor result = at::zeros_like(tokens);
  for (int64_t e = 0; e < options_.experts; ++e) {
    const at::Tensor places = chosen.eq(e).nonzero();
    if (places.size(0) == 0) {
      continue;
    }
    const at::Tensor token = places.select(1, 0);
    const at::Tensor weight =
        weights.index({token, places.select(1, 1)}).unsqueeze(-1);
    const at::Tensor output = experts_[static_cast<size_t>(e)]->forward(
        tokens.index_select(0, token));
    result = result.index_add(0, token, output * weight);
  }
  if (options_.shared) {
    result = result + at::sigmoid(shared_gate_.forward(tokens)) *
                          shared_->forward(tokens);
  }
  return result.view_as(x);
}

} // namespace tessera::zoo
