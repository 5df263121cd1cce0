// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/vocab_parallel_embedding.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/vocab_range.h"

#include <ATen/ops/embedding.h>

namespace tessera {

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(
    const TensorParallel& how,
    const VocabParallelEmbeddingOptions& options)
    : ParallelModule(how), split_(options.vocab, how.group->size()) {
  weight = register_part(
      "weight",
      {options.vocab, options.features},
      {0, split_},
      options.weight_init ? options.weight_init : normal_init(),
      options.parameters);
  if (!options.padding_id) {
    return;
  }
  TESSERA_CHECK(
      *options.padding_id >= 0 && *options.padding_id < options.vocab,
      "padding_id is ",
      *options.padding_id,
      ", and the vocabulary has tokens 0 to ",
      options.vocab - 1,
      ".");
  const int64_t row = *options.padding_id - split_.begin(how.group->rank());
  if (row >= 0 && row < split_.length(how.group->rank())) {
    own_padding_ = row;
  }
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  check_tokens(tokens, split_.size(), "VocabParallelEmbedding");
  const OwnTokens own = own_tokens(tokens, split_, how().group->rank());
  const at::Tensor rows = at::embedding(weight, own.rows, own_padding_);
  return leave_layer(rows.masked_fill(own.elsewhere.unsqueeze(-1), 0), how());
}

} // namespace tessera
