// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random masks that are drawn anew for each example and epoch: of tokens and of
// image patches.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

/// Random numbers for the examples of a batch, a function of seed, epoch and
/// example alone. A row with a smaller `each` is a prefix of one with a larger
/// `each`.
/// @return uniform in [0, 1): float32 [examples, each] on the CPU.
at::Tensor draws_of(
    std::span<const size_t> examples,
    int64_t epoch,
    uint64_t seed,
    int64_t each);

/// Numbers uniform in [0, 1), one after the other.
using Uniforms = std::function<double()>;

/// The numbers of draws_of() for one example, from number `first` on.
Uniforms uniforms_of(
    size_t example,
    int64_t epoch,
    uint64_t seed,
    int64_t first = 0);

/// An integer in [0, count), by one number.
int64_t below(const Uniforms& draws, int64_t count);

struct TokenMaskOptions {
  double probability = 0.15; ///< that a token is predicted
  int64_t mask_token = 0;
  /// The fractions of predicted tokens that are replaced by the mask token, and
  /// by a random token of the vocabulary; the rest stay unchanged.
  double masked = 0.8;
  double random = 0.1;
  std::vector<int64_t> never_masked; ///< tokens that are never predicted
};

void visit_fields(runtime::OptionFields& fields, TokenMaskOptions& options);
/// The fields that are not tokens.
void visit_rates(runtime::OptionFields& fields, TokenMaskOptions& options);

struct MaskedTokens {
  at::Tensor ids; ///< int64 [B, S]
  at::Tensor labels; ///< int64 [B, S], -100 where nothing is predicted
};

/// Masks tokens for BERT's pre-training (arXiv:1810.04805): each with the given
/// probability, and in a sequence where none is selected, the token that came
/// closest. The tokens of a word are selected together.
/// @param ids int64 [B, S]
/// @param is_text [B, S], 0 at padding; undefined: no padding.
/// @param draws three numbers for each token, see draws_of().
/// @param words int64 [B, S], the place of the first token of each token's
/// word;
///     undefined: each token is one.
MaskedTokens mask_tokens(
    const at::Tensor& ids,
    const at::Tensor& is_text,
    const at::Tensor& draws,
    int64_t vocab,
    const TokenMaskOptions& options,
    const at::Tensor& words = {});

/// Masks the fraction `share` of the patches of each image, at least one: those
/// with the smallest numbers. float32 [B, patches] -> bool.
at::Tensor mask_patches(const at::Tensor& draws, double share);

} // namespace tessera::zoo
