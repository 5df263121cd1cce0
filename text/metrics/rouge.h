// SPDX-License-Identifier: Apache-2.0
#pragma once
// `rouge()` compares a summary with a reference (ROUGE, Lin, 2004) as the
// package rouge_score does.

#include <string_view>

namespace tessera::text {

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

/// What of the words is compared.
enum class RougeWords {
  kWhole,
  kStems, ///< rouge_score's use_stemmer: of words of 4 characters or more
};

RougeScores rouge(
    std::string_view prediction,
    std::string_view reference,
    RougeWords compared = RougeWords::kWhole);

} // namespace tessera::text
