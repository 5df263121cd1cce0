// SPDX-License-Identifier: Apache-2.0
#pragma once
// Heads that reconstruct patches of images; their masks are drawn for each
// example and epoch if the file has none.

#include "tessera/zoo/heads/standard_head.h"

namespace tessera::zoo {

/// The pixels of masked patches (`bool_masked_pos`).
class MaskedPatchHead : public StandardHead {
 public:
  explicit MaskedPatchHead(const PatchEmbeddingOptions& images)
      : StandardHead({.images = images}) {}

  void draw(
      NamedTensors& batch,
      const ExampleOptions& options,
      const BatchDraws& draws) const override;
  LossCounts loss_counts(const ModelInput& batch) const override;
  bool has_equal_counts(const ColumnChecks& examples) const override;
  void add_score(const ScoredBatch& batch, ScoreSums& sums) const override;

 protected:
  std::vector<std::string> targets() const override {
    return {"bool_masked_pos"};
  }
};

/// The pixels of patches that the encoder does not see (`noise` selects them).
class AutoencoderHead : public StandardHead {
 public:
  explicit AutoencoderHead(const PatchEmbeddingOptions& images)
      : StandardHead({.images = images}) {}

  void draw(
      NamedTensors& batch,
      const ExampleOptions& options,
      const BatchDraws& draws) const override;

 protected:
  std::vector<std::string> targets() const override {
    return {"noise"};
  }
};

} // namespace tessera::zoo
