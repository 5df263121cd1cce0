// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RowDraws` draws tokens for rows, each with random numbers of its own.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// The random numbers of a row are a function of the seed, the row's stream,
/// the position of the token and the candidate (Philox4x32-10): other rows of a
/// batch, and how many of them there are, do not change what a row draws.
class RowDraws {
 public:
  /// @param streams of the rows.
  RowDraws(uint64_t seed, std::vector<uint64_t> streams);

  /// The stream of one of the results for a prompt.
  /// @param prompt its number, see GenerateOptions::prompt_numbers.
  /// @throws tessera::Error unless both are between 0 and 2^32 - 1.
  static uint64_t stream_of(int64_t prompt, int64_t copy);

  /// Draws without replacement, with these chances.
  /// @param chances [rows, n] float32 on the CPU, 0 or more, of a row up to a
  ///     common factor.
  /// @param count at most n. Where fewer have a chance, the first of the others
  ///     follow.
  /// @param position of the token that is drawn.
  /// @return [rows, count] int64, in the order in which they were drawn.
  at::Tensor draw(const at::Tensor& chances, int64_t count, int64_t position)
      const;

 private:
  uint64_t seed_;
  std::vector<uint64_t> streams_;
};

} // namespace tessera::zoo
