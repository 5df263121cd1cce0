// SPDX-License-Identifier: Apache-2.0
#pragma once
// Labelled texts, one JSON object a line.

#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

struct TextClassificationColumns {
  std::string text = "text";
  std::string label = "label";
};

/// One text with its label, as text.
struct LabelledText {
  std::string text;
  std::string label;
};

/// Reads a JSON lines file; empty lines are skipped.
/// @throws Error naming file, line and what is wrong with it; also when there
/// is no example at all.
std::vector<LabelledText> read_labelled_texts(
    const std::filesystem::path& path,
    const TextClassificationColumns& columns = {});

/// The labels that occur, sorted.
std::vector<std::string> labels_of(const std::vector<LabelledText>& texts);

/// One tokenized example; `label` indexes the list of labels.
struct LabelledEncoding {
  Encoding encoding;
  int64_t label = 0;
};

/// Tokenizes all texts, each cut to `max_length` tokens.
/// @throws Error when a text has a label that is not in `labels`.
std::vector<LabelledEncoding> encode_labelled_texts(
    const std::vector<LabelledText>& texts,
    const std::vector<std::string>& labels,
    const BertTokenizer& tokenizer,
    int64_t max_length);

/// The share of the most frequent label: what guessing it always would score.
double majority_share(const std::vector<LabelledEncoding>& examples);

} // namespace tessera::zoo
