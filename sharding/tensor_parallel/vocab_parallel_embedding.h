// SPDX-License-Identifier: Apache-2.0
#pragma once
// `VocabParallelEmbedding` is an embedding whose rows are partitioned over a
// tensor-parallel group.

#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace tessera {

struct VocabParallelEmbeddingOptions {
  int64_t vocab = 0; ///< rows; need not divide evenly
  int64_t features = 0;
  std::optional<int64_t> padding_id; ///< its row gets no gradient
  InitMethod weight_init; ///< by default that of torch::nn::Embedding: normal
  DistributedParameterOptions parameters;
};

/// Looks up rows of a table [vocab, features] by token, as a
/// torch::nn::Embedding does that a tensor plan has divided as kVocab: each
/// rank looks up the tokens whose rows it has, and the results are summed over
/// the ranks. Products with `weight`, as in a tied head, are column-parallel.
class VocabParallelEmbeddingImpl : public DistributedModule {
 public:
  /// @throws tessera::Error when there is no group, there are fewer rows than
  ///   ranks, or padding_id is not a row.
  VocabParallelEmbeddingImpl(
      const TensorParallel& tp,
      const VocabParallelEmbeddingOptions& options);

  /// Collective unless the group has one rank.
  /// @param tokens int64 or int32, equal and whole on all ranks:
  ///   [batch, sequence].
  /// @return [batch, sequence, features], whole or, under sequence parallelism,
  ///   divided along the sequence ([Note: DTensors]).
  /// @throws tessera::Error for a token outside the vocabulary; on a GPU, this
  ///   is an asynchronous device error instead.
  at::Tensor forward(const at::Tensor& tokens);

  at::Tensor weight;

 private:
  int64_t padding_id_;
};
TORCH_MODULE(VocabParallelEmbedding);

} // namespace tessera
