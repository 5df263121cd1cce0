// SPDX-License-Identifier: Apache-2.0
#pragma once
// read_labelled_texts() reads labeled texts from JSON lines files;
// encode_labelled_texts() tokenizes them.

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

/// One text and its label, as a string.
struct LabelledText {
  std::string text;
  std::string label;
};

/// Reads a JSON lines file; empty lines are skipped.
/// @throws Error naming file, line and problem; also if there are no examples.
std::vector<LabelledText> read_labelled_texts(
    const std::filesystem::path& path,
    const TextClassificationColumns& columns = {});

/// The distinct labels, sorted.
std::vector<std::string> labels_of(const std::vector<LabelledText>& texts);

/// One tokenized example; `label` indexes the list of labels.
struct LabelledEncoding {
  Encoding encoding;
  int64_t label = 0;
};

/// Tokenizes all texts, each truncated to `max_length` tokens.
/// @throws Error if a text has a label that is not in `labels`.
std::vector<LabelledEncoding> encode_labelled_texts(
    const std::vector<LabelledText>& texts,
    const std::vector<std::string>& labels,
    const BertTokenizer& tokenizer,
    int64_t max_length);

/// The fraction of examples with the most frequent label: the accuracy of
/// always guessing it.
double majority_share(const std::vector<LabelledEncoding>& examples);

} // namespace tessera::zoo
