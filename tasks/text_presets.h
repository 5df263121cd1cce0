// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextPreset` is a published set of labeled texts, such as GLUE's, and how its
// files are read.

#include "tessera/text/rows/text_rows.h"

#include <string>
#include <vector>

namespace tessera::tasks {

struct LabelledText;
struct TextPreset;

/// Gives each text of a row to `use`, in order.
/// @throws Error naming the row and what it lacks.
using ReadPreset = std::vector<LabelledText> (*)(
    const TextPreset& preset,
    const text::TextRow& row);

/// A row of the table of presets. Files are as they are published: GLUE's
/// tables, SuperGLUE's JSON lines, and the JSON lines that Hugging Face's
/// `datasets` exports of both.
struct TextPreset {
  std::string name; ///< "glue/rte"
  const char* problem_type;
  /// The classes, in the order of the numbers that stand for them.
  std::vector<std::string> labels;
  std::vector<std::string> metrics; ///< of the benchmark; see text_metrics()
  /// The keys of the texts: the first of these that a row has.
  std::vector<std::vector<std::string>> text_keys;
  std::vector<std::string> label_keys; ///< likewise
  ReadPreset read;
  std::vector<std::string> columns = {}; ///< of tables without a header
  /// The files that are scored, without extension, of tables; else `dev`.
  std::vector<std::string> heldout = {"dev"};
};

/// All presets.
const std::vector<TextPreset>& text_presets();

/// @throws Error naming data.preset if there is none of the name.
const TextPreset& text_preset(const std::string& name);

/// The files of a preset in the folder that they were unpacked to: train.tsv,
/// train.jsonl or train.json; for `heldout` dev.tsv, val.jsonl,
/// validation.jsonl or validation.json, and of MNLI both.
/// @throws Error if there are none.
std::vector<std::string> preset_files(
    const TextPreset& preset,
    const std::filesystem::path& folder,
    bool heldout);

} // namespace tessera::tasks
