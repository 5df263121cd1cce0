// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextSearch` is the interface of the decoding strategies of generate().

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

namespace tessera::zoo {

/// Whether a sequence ends with its latest token although that is none of
/// GenerateOptions::eos_token_id. Called on every rank, with the same answer.
/// @param row of the search: prompt * copies + copy; with beams, the prompt's
///     first row.
/// @param written the new tokens of the sequence, never none. Without beams
///     every token of a row is passed once, in order, until the row has ended,
///     the end token too.
using EndsSequence =
    std::function<bool(int64_t row, std::span<const int64_t> written)>;

/// The tokens proposed from logits: all that ranks without logits need.
struct TokenProposal {
  at::Tensor tokens; ///< int64 [prompts, n]
  at::Tensor scores; ///< float32 [prompts, n]; undefined if not needed
};

/// Runs on the CPU. Ranks that are given the same proposals have the same
/// sequences.
class TextSearch {
 public:
  virtual ~TextSearch() = default;

  /// Proposes the next tokens.
  /// @param logits [rows, vocabulary] of the next token.
  virtual TokenProposal propose(const at::Tensor& logits) = 0;

  /// A proposal of the same shapes, to be overwritten.
  virtual TokenProposal blank() const = 0;

  /// Appends one token to every row.
  /// @return the row that each one continues, [rows] int64; undefined if each
  ///     continues itself.
  virtual at::Tensor advance(const TokenProposal& proposal) = 0;

  /// The sequences being extended, [rows, length so far] int64.
  virtual const at::Tensor& rows() const = 0;

  virtual bool is_done() const = 0;

  /// The sequences, once done: [prompts * num_return_sequences, S + n] int64.
  virtual at::Tensor result() const = 0;
};

} // namespace tessera::zoo
