// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MuonOptions`: Muon.

#include "tessera/engine/optim/optimizers/adam.h"

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// Muon: momentum, orthogonalized by Newton-Schulz iterations, for matrices
/// between hidden layers; AdamW for all others: tensors that are not 2-D and
/// those that `adamw_name_patterns` names.
///
/// Each rank orthogonalizes the matrices of which its shard has a part, from
/// momentum gathered over the ranks; a matrix that crosses the boundary of two
/// shards is computed on both ranks.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int newton_schulz_steps = 5;
  /// Multiplies orthogonal updates by 0.2 * sqrt(max(rows, columns)), which
  /// gives them the root mean square of AdamW's updates, so that both can use
  /// the same learning rate. False: by sqrt(max(1, rows / columns)).
  bool match_adamw = true;
  /// The dtype of the iterations. By default bfloat16 on CUDA and the dtype of
  /// the master weights on the CPU.
  std::optional<at::ScalarType> compute_dtype;
  /// Regular expressions that are searched for in parameter names: embeddings
  /// and heads.
  std::vector<std::string>
      adamw_name_patterns{"emb", "wte", "wpe", "head", "classifier", "score"};
  AdamWOptions rest;
};

const engine::Optimizer& optimizer_of(std::type_identity<MuonOptions>);

} // namespace tessera
