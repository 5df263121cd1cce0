// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/embedding.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/vocab_range.h"

#include <ATen/core/grad_mode.h>

namespace tessera::zoo {

Embedding::Embedding(
    torch::nn::Module& owner,
    const std::string& name,
    const LayerContext& context,
    const EmbeddingOptions& options)
    : rows_(options.rows) {
  TESSERA_CHECK(
      !options.padding_id ||
          (*options.padding_id >= 0 && *options.padding_id < options.rows),
      "{}: the padding token is {}, outside a table of {} rows",
      name,
      *options.padding_id,
      options.rows);
  if (const TensorParallel* how = context.parallel()) {
    VocabParallelEmbeddingOptions parallel;
    parallel.vocab = options.rows;
    parallel.features = options.features;
    parallel.padding_id = options.padding_id;
    parallel.weight_init = normal_init(0, options.deviation);
    parallel_ =
        owner.register_module(name, VocabParallelEmbedding(*how, parallel));
    return;
  }
  plain_ = owner.register_module(
      name,
      torch::nn::Embedding(
          torch::nn::EmbeddingOptions(options.rows, options.features)
              .padding_idx(options.padding_id)));
  const at::NoGradGuard no_grad;
  plain_->weight.normal_(0, options.deviation);
  if (options.padding_id) {
    plain_->weight[*options.padding_id].zero_();
  }
}

at::Tensor Embedding::forward(const at::Tensor& ids) {
  if (!parallel_.is_empty()) {
    return parallel_->forward(ids.to(at::kLong));
  }
  const at::Tensor tokens = ids.to(at::kLong);
  sharding::check_tokens(tokens, rows_, "embedding");
  return plain_->forward(tokens);
}

const at::Tensor& Embedding::weight() const {
  return parallel_.is_empty() ? plain_->weight : parallel_->weight;
}

} // namespace tessera::zoo
