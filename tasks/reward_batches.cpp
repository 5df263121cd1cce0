// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/reward_batches.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/reward_loss.h"

#include <torch/types.h>

#include <algorithm>

namespace tessera::tasks {

zoo::ModelInput text_rows(
    const std::vector<const SupervisedText*>& texts,
    const SupervisedInputs& inputs) {
  size_t longest = 1;
  for (const SupervisedText* text : texts) {
    longest = std::max(longest, text->tokens.size());
  }
  DocumentRows rows(
      texts.size(),
      runtime::round_up(static_cast<int64_t>(longest), inputs.multiple_of),
      inputs);
  for (size_t row = 0; row < texts.size(); ++row) {
    rows.add(row, texts[row]->tokens);
  }
  zoo::ModelInput batch;
  rows.store(batch);
  return batch;
}

std::string RewardBatches::text() const {
  size_t tokens = 0;
  for (const PreferencePair& pair : pairs_) {
    tokens += pair.chosen.tokens.size() + pair.rejected.tokens.size();
  }
  return formatted(
      "{} of {} tokens{}",
      runtime::count_text(static_cast<int64_t>(pairs_.size()), "pair"),
      tokens,
      !pairs_.empty() && pairs_.front().margin ? ", with margins" : "");
}

zoo::ModelInput RewardBatches::make(
    const std::vector<size_t>& examples,
    int64_t /*epoch*/,
    bool loss_only) const {
  std::vector<const SupervisedText*> texts;
  std::vector<float> margins;
  for (const size_t example : examples) {
    const PreferencePair& pair = pairs_[example];
    texts.push_back(&pair.chosen);
    texts.push_back(&pair.rejected);
    if (pair.margin) {
      margins.push_back(static_cast<float>(*pair.margin));
    }
  }
  zoo::ModelInput batch = text_rows(texts, inputs_);
  batch.loss_only = loss_only;
  if (!margins.empty()) {
    batch.others[kRewardMargins] = torch::tensor(margins);
  }
  return batch;
}

} // namespace tessera::tasks
