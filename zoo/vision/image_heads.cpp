// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/image_heads.h"

#include "tessera/zoo/heads/class_heads.h"
#include "tessera/zoo/heads/patch_heads.h"
#include "tessera/zoo/models/input_checks.h"

#include <string_view>
#include <utility>
#include <vector>

namespace tessera::zoo {

std::unique_ptr<Head> image_head(
    ImageHead head,
    const PatchEmbeddingOptions& images,
    const ClassifierOptions& options) {
  switch (head) {
    case ImageHead::kBase:
      break;
    case ImageHead::kClassification:
      return std::make_unique<ClassHead>(HeadInputs{.images = images}, options);
    case ImageHead::kMasked:
      return std::make_unique<MaskedPatchHead>(images);
  }
  return nullptr;
}

void check_image_arguments(const ModelInput& input, ImageHead head) {
  std::vector<std::string_view> taken = {
      "pixel_values", "interpolate_pos_encoding"};
  if (head == ImageHead::kClassification) {
    taken.emplace_back("labels");
  } else if (head == ImageHead::kMasked) {
    taken.emplace_back("bool_masked_pos");
  }
  check_not_taken(input, taken);
}

at::Tensor masked_patches(const ModelInput& input) {
  const auto mask = input.others.find("bool_masked_pos");
  return mask == input.others.end() ? at::Tensor() : mask->second;
}

void add_image_classes(
    const ModelInput& input,
    at::Tensor logits,
    const ClassifierOptions& options,
    ModelOutput& output) {
  output.logits = std::move(logits);
  if (input.labels.defined()) {
    output.loss = classifier_loss(output.logits, input.labels, options);
  }
}

void add_reconstruction(
    const ModelInput& input,
    const at::Tensor& pixels,
    const ImageSize& patch,
    ModelOutput& output) {
  output.others["reconstruction"] = pixels;
  if (const at::Tensor mask = masked_patches(input); mask.defined()) {
    output.loss = masked_pixel_loss(input.pixel_values, pixels, mask, patch);
  }
}

} // namespace tessera::zoo
