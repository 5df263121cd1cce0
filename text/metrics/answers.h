// SPDX-License-Identifier: Apache-2.0
#pragma once
// answer_exact_match() and answer_f1() compare an answer with references, as
// the official scripts of SQuAD do.

#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// Without case, punctuation, the articles a, an and the, and surplus space.
std::string normalize_answer(std::string_view answer);

/// 1 if the normalized answer is that of a reference, else 0.
double answer_exact_match(
    std::string_view answer,
    const std::vector<std::string>& references);

/// The F1 of the words of the normalized answers, with the best reference; if
/// one has no words, whether both have none (SQuAD 2.0).
double answer_f1(
    std::string_view answer,
    const std::vector<std::string>& references);

} // namespace tessera::text
