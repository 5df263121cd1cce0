// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SupervisedPreset` is a common form of rows for supervised fine-tuning,
// beside conversations, and prompts with completions.

#include "tessera/text/rows/text_rows.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

enum class SupervisedPreset {
  /// `instruction`, perhaps with an `input`, and `output`: Stanford Alpaca's.
  kAlpaca,
  /// `conversations` of messages with `from` (`human`, `gpt`, ...) and `value`.
  kShareGpt,
};

/// Names of data.preset.
std::vector<std::pair<std::string, std::optional<SupervisedPreset>>>
supervised_presets();

/// The keys that a row of a preset gets.
struct SupervisedKeys {
  std::string messages;
  std::string prompt;
  std::string completion;
};

/// A row of a preset as a conversation or, of Alpaca without
/// `has_chat_template`, as a prompt in the words of Stanford Alpaca and its
/// completion.
/// @throws tessera::Error naming the row and what it lacks, or a message of an
///   unknown speaker.
text::TextRow row_of_preset(
    SupervisedPreset preset,
    const text::TextRow& row,
    const SupervisedKeys& keys,
    bool has_chat_template);

} // namespace tessera::tasks
