// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Bleu` is the BLEU of a corpus (Papineni et al., 2002) as sacrebleu computes
// it: tokenization 13a, exponential smoothing.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

struct BleuScore {
  double score = 0; ///< 0 to 100
  std::array<double, 4> precisions{}; ///< of 1 to 4 words, 0 to 100
  double brevity_penalty = 0;
  int64_t words = 0; ///< of the predictions
  int64_t reference_words = 0; ///< of the references closest in length
};

class Bleu {
 public:
  explicit Bleu(bool lowercase = false) : lowercase_(lowercase) {}

  /// @throws tessera::Error without a reference.
  void add(
      const std::string& prediction,
      const std::vector<std::string>& references);

  /// The counts, for a sum over ranks.
  std::vector<double> values() const;
  void set_values(const std::vector<double>& values);

  BleuScore score() const;

 private:
  bool lowercase_;
  std::array<double, 4> right_{}; ///< by length of the sequences of words
  std::array<double, 4> all_{};
  double words_ = 0;
  double reference_words_ = 0;
};

/// The words of mteval-v13a, with a space between any two.
std::string tokenize_13a(std::string_view text);

} // namespace tessera::text
