// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that the heads of ViT and Swin share.

#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/vision/pixel_decoder.h"

namespace tessera::zoo {

enum class ImageHead {
  kBase, ///< hidden states and a pooled output per image
  kClassification,
  kMasked, ///< the pixels of masked patches
};

/// @return null for the base model.
std::unique_ptr<Head> image_head(
    ImageHead head,
    const PatchEmbeddingOptions& images,
    const ClassifierOptions& options);

/// @throws tessera::Error naming an argument that a model with this head does
///     not take.
void check_image_arguments(const ModelInput& input, ImageHead head);

/// `bool_masked_pos` [B, patches]; undefined if it is not given.
at::Tensor masked_patches(const ModelInput& input);

/// Adds class logits, and with labels the loss.
void add_image_classes(
    const ModelInput& input,
    at::Tensor logits,
    const ClassifierOptions& options,
    ModelOutput& output);

/// Adds `reconstruction`, and with masked patches the loss of their pixels.
void add_reconstruction(
    const ModelInput& input,
    const at::Tensor& pixels,
    const ImageSize& patch,
    ModelOutput& output);

} // namespace tessera::zoo
