// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/vocab_parallel_embedding.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/vocab_range.h"

#include <ATen/ops/embedding.h>

namespace tessera {

at::Tensor vocab_lookup(
    const at::Tensor& rows,
    const at::Tensor& tokens,
    const sharding::DimSplit& vocab,
    int64_t padding_id,
    const TensorParallel& how,
    const char* where) {
  sharding::check_tokens(tokens, vocab.size(), where);
  const int rank = how.group->rank();
  const sharding::OwnTokens own = own_tokens(tokens, vocab, rank);
  const int64_t padding = padding_id - vocab.begin(rank);
  const bool is_here = padding >= 0 && padding < vocab.length(rank);
  const at::Tensor found =
      at::embedding(rows, own.rows, is_here ? padding : -1);
  return leave_layer(found.masked_fill(own.elsewhere.unsqueeze(-1), 0), how);
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(
    const TensorParallel& how,
    const VocabParallelEmbeddingOptions& options)
    : ParallelModule(how),
      split_(options.vocab, how.group->size()),
      padding_id_(options.padding_id.value_or(-1)) {
  weight = register_part(
      "weight",
      {options.vocab, options.features},
      {0},
      options.weight_init ? options.weight_init : normal_init(),
      options.parameters);
  TESSERA_CHECK(
      !options.padding_id || (padding_id_ >= 0 && padding_id_ < options.vocab),
      "padding_id is {}, but the vocabulary has tokens 0 to {}.",
      padding_id_,
      options.vocab - 1);
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  return vocab_lookup(
      weight, tokens, split_, padding_id_, how(), "VocabParallelEmbedding");
}

} // namespace tessera
