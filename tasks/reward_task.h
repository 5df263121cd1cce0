// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RewardTaskOptions` are the options of the task reward.

#include "tessera/tasks/preference_texts.h"
#include "tessera/tasks/reward_loss.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/text/rows/text_rows.h"
#include "tessera/zoo/heads/head.h"

#include <string>

namespace tessera::tasks {

struct RewardTaskOptions {
  PreferenceKeys keys{.margin = "margin", .takes_whole_texts = true};
  std::string completion = "completion"; ///< of rows that get a reward
  text::TextRowOptions rows;
  RewardOptions reward; ///< the section `reward`

  /// How rows that get a reward are read.
  SupervisedOptions texts() const;
};

/// How texts become the inputs of a reward model.
/// @throws tessera::Error if nothing says which token is padding.
SupervisedInputs reward_inputs(
    const TrainingConfig& config,
    const zoo::Model& model,
    const zoo::Head& head,
    const text::Tokenizer& tokenizer);

} // namespace tessera::tasks
