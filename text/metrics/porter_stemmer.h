// SPDX-License-Identifier: Apache-2.0
#pragma once
// `porter_stem()` removes the suffixes of English words.

#include <string>

namespace tessera::text {

/// The stem of a word by M. Porter's algorithm (An algorithm for suffix
/// stripping, 1980) with the changes that NLTK's PorterStemmer has by default:
/// NLTK's stem of the same word.
/// @param word of lower-case ASCII letters and digits.
std::string porter_stem(std::string word);

} // namespace tessera::text
