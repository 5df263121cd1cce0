// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is drawn anew for an example in each epoch: which of its tokens or
// patches are masked.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::zoo {

/// Numbers for the examples of a batch, a function of the seed, the epoch and
/// the example alone. With fewer tokens a row has the first of the same
/// numbers.
/// @return uniform in [0, 1): float32 [examples, each] on the CPU.
at::Tensor draws_of(
    std::span<const size_t> examples,
    int64_t epoch,
    uint64_t seed,
    int64_t each);

struct TokenMaskOptions {
  double probability = 0.15; ///< of a token, to be predicted
  int64_t mask_token = 0;
  /// Of those that are predicted, the shares that the mask token stands for,
  /// and any token of the vocabulary; the others stay.
  double masked = 0.8;
  double random = 0.1;
  std::vector<int64_t> never_masked; ///< tokens that are not predicted
};

struct MaskedTokens {
  at::Tensor ids; ///< int64 [B, S]
  at::Tensor labels; ///< the same, -100 where nothing is predicted
};

/// Masks tokens for BERT's kind of pre-training (arXiv:1810.04805): each with
/// the probability, in a row with none the one that came nearest.
/// @param ids int64 [B, S]
/// @param is_text [B, S], 0 where a token is padding; undefined: nowhere.
/// @param draws of three numbers for each token, see draws_of().
MaskedTokens mask_tokens(
    const at::Tensor& ids,
    const at::Tensor& is_text,
    const at::Tensor& draws,
    int64_t vocab,
    const TokenMaskOptions& options);

/// Masks `share` of the patches of each image, at least one: those with the
/// least numbers. float32 [B, patches] -> bool.
at::Tensor mask_patches(const at::Tensor& draws, double share);

} // namespace tessera::zoo
