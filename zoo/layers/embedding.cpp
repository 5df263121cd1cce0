// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/embedding.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/sharding/tensor_parallel/vocab_range.h"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <optional>

namespace tessera::zoo {

namespace {

torch::nn::EmbeddingOptions of_library(const EmbeddingOptions& sizes) {
  return torch::nn::EmbeddingOptions(sizes.rows, sizes.features)
      .padding_idx(sizes.padding_id);
}

void draw(at::Tensor& weight, const EmbeddingOptions& sizes) {
  const at::NoGradGuard no_grad;
  weight.normal_(0, sizes.deviation);
  if (sizes.padding_id) {
    weight[*sizes.padding_id].zero_();
  }
}

} // namespace

TokenTable::TokenTable(
    const EmbeddingOptions& sizes,
    const LayerContext& context)
    : torch::nn::EmbeddingImpl(
          context.parallel() == nullptr ? of_library(sizes)
                                        : torch::nn::EmbeddingOptions(1, 1)) {
  if (context.parallel() == nullptr) {
    draw(weight, sizes);
    return;
  }
  options = of_library(sizes);
  weight = parameters_["weight"] = DistributedParameter(
      {sizes.rows, sizes.features}, normal_init(0, sizes.deviation));
}

Embedding::Embedding(
    torch::nn::Module& owner,
    const std::string& name,
    const LayerContext& context,
    const EmbeddingOptions& options)
    : context_(context), rows_(options.rows) {
  TESSERA_CHECK(
      !options.padding_id ||
          (*options.padding_id >= 0 && *options.padding_id < options.rows),
      "{}: the padding token is {}, outside a table of {} rows",
      name,
      *options.padding_id,
      options.rows);
  std::optional<sharding::NumberedInit> undrawn;
  if (context.parallel() != nullptr) {
    undrawn.emplace(0); // as in Linear::make()
  }
  table_ = owner.register_module(
      name, std::make_shared<TokenTable>(options, context));
}

at::Tensor Embedding::forward(const at::Tensor& ids) {
  const at::Tensor tokens = ids.to(at::kLong);
  sharding::check_tokens(tokens, rows_, "embedding");
  const TensorParallel* tp = context_.parallel();
  TESSERA_CHECK(
      tp == nullptr || !tp->sequence || tokens.size(1) % tp->group->size() == 0,
      "sequences of {} tokens are not divisible by the {} tensor-parallel ranks; pad them to a multiple, or turn off sequence parallelism",
      tokens.size(1),
      tp->group->size());
  return table_->forward(tokens);
}

const at::Tensor& Embedding::weight() const {
  return table_->weight;
}

torch::nn::Embedding full_table(
    torch::nn::Module& owner,
    const std::string& name,
    const EmbeddingOptions& options) {
  auto table =
      owner.register_module(name, torch::nn::Embedding(of_library(options)));
  draw(table->weight, options);
  return table;
}

} // namespace tessera::zoo
