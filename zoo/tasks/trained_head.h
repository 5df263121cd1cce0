// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainedHead` describes the head of a model and the labels that train it.

#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::zoo {

enum class HeadKind {
  kNextTokens, ///< labels are tokens; each token predicts the next one
  kTokensInPlace, ///< labels are tokens; each token predicts its own
  kMaskedTokens, ///< the same, for masked tokens
  kPreTraining, ///< masked tokens and next-sentence prediction
  kSecondText, ///< labels are the decoder's target tokens
  kClasses, ///< one label per example, or several, or a number
  kTokenClasses, ///< one label per token
  kChoices, ///< which of several choices
  kAnswers, ///< the start and end of an answer
  kMaskedPixels, ///< masked patches of images
  kAutoencoder, ///< unseen patches of images
  kTwoViews, ///< two views of each image
  kOther, ///< a model registered outside of the zoo
};

struct TrainedHead {
  HeadKind kind = HeadKind::kOther;
  std::string architecture; ///< for messages
  /// For image models: size, channels and patches.
  std::optional<zoo::PatchEmbeddingOptions> images;
  int64_t vocab = 0; ///< vocabulary size; 0: not known
  /// Number of classes; 0 if labels are not classes, or if it is not known.
  int64_t classes = 0;
  bool has_several_labels = false; ///< labels are [classes] of 0 and 1
};

/// @throws tessera::Error on a base model, which has no loss.
TrainedHead trained_head(const zoo::Model& model);

/// Whether labels are tokens, or classes of tokens, aligned with input_ids.
bool labels_follow_input(HeadKind kind);

} // namespace tessera::zoo
