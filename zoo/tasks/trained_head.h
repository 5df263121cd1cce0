// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the head of a model is trained with.

#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::zoo {

enum class HeadKind {
  kNextTokens, ///< labels are tokens, of which each predicts the next one
  kTokensInPlace, ///< labels are tokens at their own places
  kMaskedTokens, ///< the same, of tokens that are masked
  kPreTraining, ///< masked tokens, and whether one text follows the other
  kSecondText, ///< labels are the tokens of another text
  kClasses, ///< a label for each example, or several, or a number
  kTokenClasses, ///< a label for each token
  kChoices, ///< which of several texts it is
  kAnswers, ///< where an answer begins and where it ends
  kMaskedPixels, ///< of images, the patches that are masked
  kAutoencoder, ///< of images, the patches that are not seen
  kTwoViews, ///< two views of each image
  kOther, ///< of a model that was registered elsewhere
};

struct TrainedHead {
  HeadKind kind = HeadKind::kOther;
  std::string architecture; ///< for messages
  /// Of models that read images: their size, channels and patches.
  std::optional<zoo::PatchEmbeddingOptions> images;
  int64_t vocab = 0; ///< of tokens; 0: not known
  /// Of labels that are classes; 0: they are no classes, or it is not known.
  int64_t classes = 0;
  bool has_several_labels = false; ///< labels are [classes] of 0 and 1
};

/// @throws tessera::Error when it is a base model, which has no loss.
TrainedHead trained_head(const zoo::Model& model);

/// Whether labels are tokens, or classes of tokens, beside input_ids.
bool labels_follow_input(HeadKind kind);

} // namespace tessera::zoo
