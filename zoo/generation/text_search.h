// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts that are being written, whatever the way in which their tokens are
// chosen.

#include <ATen/core/Tensor.h>

namespace tessera::zoo {

/// What logits come to: all that ranks without logits need.
struct TokenProposal {
  at::Tensor tokens; ///< int64 [texts, n]
  at::Tensor scores; ///< float32 [texts, n]; undefined where none are needed
};

/// On the CPU. Ranks that are given the same proposals have the same texts.
class TextSearch {
 public:
  virtual ~TextSearch() = default;

  /// Chooses tokens behind the texts so far.
  /// @param logits [rows, vocabulary] of the next token.
  virtual TokenProposal propose(const at::Tensor& logits) = 0;

  /// One of the same sizes, to be overwritten.
  virtual TokenProposal blank() const = 0;

  /// Every row gets one token.
  /// @return the row that each one goes on with, [rows] int64; undefined where
  ///     that is itself.
  virtual at::Tensor advance(const TokenProposal& proposal) = 0;

  /// The texts that are gone on with, [rows, so far] int64.
  virtual const at::Tensor& rows() const = 0;

  virtual bool is_done() const = 0;

  /// The texts, once done: [texts, S + n] int64.
  virtual at::Tensor result() const = 0;
};

} // namespace tessera::zoo
