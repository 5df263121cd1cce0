// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/patch_heads.h"

#include "tessera/zoo/inputs/example_options.h"

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

void AutoencoderHead::draw(
    NamedTensors& batch,
    const ExampleOptions& /*options*/,
    const BatchDraws& draws) const {
  if (batch.count("noise") == 0) {
    batch["noise"] = draws(patches_in(batch));
  }
}

} // namespace tessera::zoo
