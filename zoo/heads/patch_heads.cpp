// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/patch_heads.h"

#include "tessera/zoo/inputs/column_checks.h"
#include "tessera/zoo/inputs/example_options.h"

#include <torch/types.h>

namespace tessera::zoo {

void MaskedPatchHead::draw(
    NamedTensors& batch,
    const ExampleOptions& options,
    const BatchDraws& draws) const {
  if (batch.count("bool_masked_pos") == 0) {
    batch["bool_masked_pos"] =
        mask_patches(draws(patches_in(batch)), options.patch_mask);
  }
}

LossCounts MaskedPatchHead::loss_counts(const ModelInput& batch) const {
  return {batch.others.at("bool_masked_pos").ne(0).sum().item<double>()};
}

bool MaskedPatchHead::has_equal_counts(const ColumnChecks& examples) const {
  return examples.files().find("bool_masked_pos") == nullptr; // drawn
}

void MaskedPatchHead::add_score(const ScoredBatch& batch, ScoreSums& sums)
    const {
  sums.add_loss(batch, loss_counts(batch.input).first);
}

void AutoencoderHead::draw(
    NamedTensors& batch,
    const ExampleOptions& /*options*/,
    const BatchDraws& draws) const {
  if (batch.count("noise") == 0) {
    batch["noise"] = draws(patches_in(batch));
  }
}

} // namespace tessera::zoo
