// SPDX-License-Identifier: Apache-2.0
#pragma once
// `rouge()` compares a summary with a reference (ROUGE, Lin, 2004) as the
// package rouge_score does, without its stemmer.

#include <string_view>

namespace tessera::zoo {

struct RougeScore {
  double precision = 0;
  double recall = 0;
  double f = 0; ///< the harmonic mean of both
};

struct RougeScores {
  RougeScore rouge1; ///< words in common
  RougeScore rouge2; ///< pairs of words
  RougeScore rouge_l; ///< longest common subsequence
  RougeScore rouge_lsum; ///< the same over sentences, which are lines
};

RougeScores rouge(std::string_view prediction, std::string_view reference);

} // namespace tessera::zoo
