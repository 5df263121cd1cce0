// SPDX-License-Identifier: Apache-2.0
#pragma once
// `VocabParallelEmbedding` is an embedding whose rows are partitioned over a
// tensor-parallel group.

#include "tessera/sharding/parallel/parallel_module.h"

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

/// Looks up rows of a table that is partitioned by `vocab`: each rank looks up
/// the tokens whose rows it has, and leave_layer() sums the results over the
/// ranks. Collective unless the group has one rank.
/// @param rows [own rows, features].
/// @param tokens int64, equal and whole on all ranks: [batch, sequence].
/// @param padding_id its row gets no gradient; -1: there is none.
/// @param where names the caller in error messages.
/// @throws tessera::Error for a token outside the vocabulary; on a GPU, this is
///   an asynchronous device error instead.
at::Tensor vocab_lookup(
    const at::Tensor& rows,
    const at::Tensor& tokens,
    const sharding::DimSplit& vocab,
    int64_t padding_id,
    const TensorParallel& how,
    const char* where);

/// Looks up rows of a table [vocab, features] by token; see vocab_lookup().
class VocabParallelEmbeddingImpl : public ParallelModule {
 public:
  /// @throws tessera::Error when there are fewer rows than ranks, or padding_id
  ///   is not a row.
  VocabParallelEmbeddingImpl(
      const TensorParallel& how,
      const VocabParallelEmbeddingOptions& options);

  /// @param tokens int64, equal and whole on all ranks: [batch, sequence].
  /// @return [batch, sequence, features]; under sequence parallelism this
  ///   rank's slice of the sequences.
  at::Tensor forward(const at::Tensor& tokens);

  const sharding::DimSplit& split() const {
    return split_;
  }

  at::Tensor weight;

 private:
  sharding::DimSplit split_;
  int64_t padding_id_;
};
TORCH_MODULE(VocabParallelEmbedding);

} // namespace tessera
