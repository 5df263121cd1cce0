// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/image_model.h"

#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/heads/class_heads.h"
#include "tessera/zoo/heads/patch_heads.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/vision/image_fields.h"

#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace {

/// `bool_masked_pos` [B, patches]; undefined if it is not given.
at::Tensor masked_patches(const ModelInput& input) {
  const auto mask = input.others.find("bool_masked_pos");
  return mask == input.others.end() ? at::Tensor() : mask->second;
}

} // namespace

ImageModel::ImageModel(
    const ImageModelConfig& config,
    ImageHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names,
    const std::vector<pipeline::LayerCost>& costs)
    : LayeredModel(
          context,
          std::move(json),
          std::move(names),
          costs,
          {"pooler.", "classifier.", "decoder.", "embeddings.mask_token"}),
      image_(config),
      head_kind_(head) {
  image_.patches.mask_token = head == ImageHead::kMasked;
  if (stage().has_first()) {
    embeddings_ = register_module("embeddings", PatchEmbedding(image_.patches));
  }
}

void ImageModel::make_end() {
  norm_ = register_module("norm", Norm(image_.norm));
  const int64_t features = image_.norm.features;
  if (head_kind_ == ImageHead::kClassification) {
    classifier_ = Linear::full(
        *this,
        "classifier",
        {features, image_.classifier.labels, true, 1, image_.deviation});
  } else if (head_kind_ == ImageHead::kMasked) {
    decoder_ = register_module(
        "decoder",
        PixelDecoder(PixelDecoderOptions{
            features,
            image_.patches.channels,
            image_.encoder_stride,
            image_.deviation}));
  }
}

std::unique_ptr<Head> ImageModel::head() {
  switch (head_kind_) {
    case ImageHead::kBase:
      break;
    case ImageHead::kClassification:
      return std::make_unique<ClassHead>(
          HeadInputs{.images = image_.patches}, image_.classifier);
    case ImageHead::kMasked:
      return std::make_unique<MaskedPatchHead>(image_.patches);
  }
  return nullptr;
}

void ImageModel::check(const ModelInput& input) const {
  std::vector<std::string_view> taken = {
      "pixel_values", "interpolate_pos_encoding"};
  if (head_kind_ == ImageHead::kClassification) {
    taken.emplace_back("labels");
  } else if (head_kind_ == ImageHead::kMasked) {
    taken.emplace_back("bool_masked_pos");
  }
  check_not_taken(input, taken);
  if (stage().has_first()) {
    embeddings_->check(input.pixel_values, interpolates(input));
  }
}

at::Tensor ImageModel::embed(const ModelInput& input) {
  return context_.dropout(
      context_.between(
          embeddings_->forward(input.pixel_values, masked_patches(input))),
      image_.embedding_dropout,
      is_training());
}

void ImageModel::add_result(
    const ModelInput& input,
    const at::Tensor& last,
    ModelOutput& output) {
  switch (head_kind_) {
    case ImageHead::kBase:
      output.last_hidden_state = last;
      break;
    case ImageHead::kClassification:
      add_classes(
          input, classifier_.forward(pooled(last)), image_.classifier, output);
      break;
    case ImageHead::kMasked: {
      const at::Tensor pixels = decoder_->forward(patches_of(last));
      output.others["reconstruction"] = pixels;
      if (const at::Tensor mask = masked_patches(input); mask.defined()) {
        output.loss = masked_pixel_loss(
            input.pixel_values, pixels, mask, image_.patches.patch);
      }
    }
  }
}

} // namespace tessera::zoo
