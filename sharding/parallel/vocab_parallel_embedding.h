// SPDX-License-Identifier: Apache-2.0
#pragma once
// An embedding whose rows are divided over a tensor-parallel group.

#include "tessera/sharding/parallel/parallel_module.h"

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace tessera {

struct VocabParallelEmbeddingOptions {
  int64_t vocab = 0; ///< rows; need not divide evenly
  int64_t features = 0;
  std::optional<int64_t> padding_id; ///< its row gets no gradient
  InitMethod weight_init; ///< by default normal, as torch::nn::Embedding
  DistributedParameterOptions parameters;
};

/// Rows of a table that is divided by `vocab`: each rank looks up the tokens
/// whose rows it has; the sum over the ranks leaves the layer. Collective
/// unless the group has one rank.
/// @param rows [own rows, features].
/// @param tokens int64, the same and whole on all ranks: [batch, sequence].
/// @param padding_id its row gets no gradient; -1: there is none.
/// @param where for errors.
/// @throws tessera::Error for a token outside the vocabulary; on a device,
///     that is an error of the device, later.
at::Tensor vocab_lookup(
    const at::Tensor& rows,
    const at::Tensor& tokens,
    const DimSplit& vocab,
    int64_t padding_id,
    const TensorParallel& how,
    const char* where);

/// Rows of a table [vocab, features] by token; see vocab_lookup().
class VocabParallelEmbeddingImpl : public ParallelModule {
 public:
  /// @throws tessera::Error when there are fewer rows than ranks, or
  ///     padding_id is no row.
  VocabParallelEmbeddingImpl(
      const TensorParallel& how,
      const VocabParallelEmbeddingOptions& options);

  /// @param tokens int64, the same and whole on all ranks: [batch, sequence].
  /// @return [batch, sequence, features]; under sequence parallelism this
  ///     rank's part of the sequences.
  at::Tensor forward(const at::Tensor& tokens);

  const DimSplit& split() const {
    return split_;
  }

  at::Tensor weight;

 private:
  DimSplit split_;
  int64_t padding_id_;
};
TORCH_MODULE(VocabParallelEmbedding);

} // namespace tessera
