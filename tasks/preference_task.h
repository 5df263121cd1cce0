// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceTaskOptions` are the options of the task preference.

#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/preference_loss.h"
#include "tessera/tasks/preference_texts.h"
#include "tessera/text/rows/text_rows.h"

#include <optional>

namespace tessera::tasks {

struct TrainingConfig;

struct PreferenceTaskOptions {
  PreferenceKeys keys;
  text::TextRowOptions rows;
  /// Several pairs in one sequence; nullopt: no.
  std::optional<bool> packed;
  PreferenceOptions preference; ///< the section `preference`

  bool is_packed() const {
    return packed.value_or(false);
  }
  /// Whether the loss is one of pairs.
  bool has_pairs() const {
    return rule_of(preference.loss).has_pairs();
  }
};

/// Keys of `data` that preference and reward have in common: files, and the
/// keys of a prompt with two answers.
/// @param files_doc of the files of training.
void visit_pair_rows(
    runtime::OptionFields& fields,
    TrainingConfig& config,
    PreferenceKeys& keys,
    const char* files_doc);

/// finish_text_files(), and refuses layouts without whole logits.
void finish_pairs(const runtime::ConfigReader& reader, TrainingConfig& config);

/// The options of a SupervisedEncoder of pairs.
SupervisedOptions pair_row_options(
    const text::TextRowOptions& rows,
    const PreferenceKeys& keys);

} // namespace tessera::tasks
