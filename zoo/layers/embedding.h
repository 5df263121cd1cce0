// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Embedding` is a table of token embeddings, plain or divided by rows over a
// tensor-parallel group.

#include "tessera/zoo/layers/layer_context.h"

#include <torch/nn/modules/embedding.h>

#include <memory>
#include <optional>
#include <string>

namespace tessera::zoo {

struct EmbeddingOptions {
  int64_t rows = 0;
  int64_t features = 0;
  /// This row is initially 0 and gets no gradient.
  std::optional<int64_t> padding_id;
  /// Standard deviation of initial weights.
  double deviation = 0.02;
};

/// `TokenTable` is the module that an Embedding registers in its owner: a
/// torch::nn::Embedding whose rows tensor-parallel ranks divide.
class TokenTable : public torch::nn::EmbeddingImpl {
 public:
  /// With a group, the table is declared and has no memory yet.
  TokenTable(const EmbeddingOptions& sizes, const LayerContext& context);
};

/// A handle: the table is registered in its owner module, with a parameter
/// `weight` [rows, features].
class Embedding {
 public:
  Embedding() = default;

  Embedding(
      torch::nn::Module& owner,
      const std::string& name,
      const LayerContext& context,
      const EmbeddingOptions& options);

  /// ids int64 or int32 [batch, sequence] -> [batch, sequence, features].
  /// Collective with a group.
  /// @throws tessera::Error on an id outside the table, if ids are on the CPU;
  ///     under sequence parallelism on a length that the ranks do not divide.
  at::Tensor forward(const at::Tensor& ids);

  /// This rank's rows.
  const at::Tensor& weight() const;

 private:
  LayerContext context_;
  int64_t rows_ = 0;
  std::shared_ptr<TokenTable> table_;
};

/// Registers a table that every rank has as a whole, such as that of positions.
torch::nn::Embedding full_table(
    torch::nn::Module& owner,
    const std::string& name,
    const EmbeddingOptions& options);

} // namespace tessera::zoo
