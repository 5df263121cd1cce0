// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceTaskOptions` are the options of the task preference.

#include "tessera/tasks/preference_loss.h"
#include "tessera/tasks/preference_texts.h"
#include "tessera/text/rows/text_rows.h"

#include <optional>

namespace tessera::tasks {

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

} // namespace tessera::tasks
