// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/vocab_parallel_embedding.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "tessera/sharding/tensor_parallel/vocab_range.h"

#include <ATen/ops/embedding.h>

namespace tessera {

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(
    const TensorParallel& tp,
    const VocabParallelEmbeddingOptions& options)
    : padding_id_(options.padding_id.value_or(-1)) {
  TESSERA_CHECK(
      tp.group != nullptr,
      "VocabParallelEmbedding was given no group: set TensorParallel::group; for a single rank, use a Communicator of one.");
  TESSERA_CHECK(
      !options.padding_id || (padding_id_ >= 0 && padding_id_ < options.vocab),
      "padding_id is {}, but the vocabulary has tokens 0 to {}.",
      padding_id_,
      options.vocab - 1);
  weight = register_parameter(
      "weight",
      DistributedParameter(
          {options.vocab, options.features},
          options.weight_init ? options.weight_init : normal_init(),
          options.parameters));
  divide_weight(
      weight,
      "VocabParallelEmbedding.weight",
      TensorDivision::kVocab,
      /*unit=*/1,
      tp);
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  if (sharding::divided_parameter(weight) == nullptr) { // else the lookup does
    sharding::check_tokens(tokens, weight.size(0), "VocabParallelEmbedding");
  }
  return at::embedding(weight, tokens, padding_id_);
}

} // namespace tessera
