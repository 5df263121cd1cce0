// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/image_encoder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/layer_stack.h"
#include "tessera/zoo/vision/image_fields.h"

#include <torch/types.h>

#include <utility>

namespace tessera::zoo {

void check_divides_tokens(const LayerContext& context, int64_t tokens) {
  const TensorParallel* how = context.parallel();
  TESSERA_CHECK(
      how == nullptr || !how->sequence || tokens % how->group->size() == 0,
      "images of {} tokens are not divisible by {} tensor-parallel ranks; turn off sequence parallelism",
      tokens,
      how == nullptr ? 1 : how->group->size());
}

ImageEncoder::ImageEncoder(
    const ImageEncoderConfig& config,
    ImageHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : Model(
          std::move(json),
          std::move(names),
          pipeline::StageLayers(context.place(), layer_costs(config.layers)),
          {"pooler.", "classifier.", "decoder.", "embeddings.mask_token"}),
      image_(config),
      head_kind_(head),
      context_(context) {
  check_divides_tokens(context, image_.patches.tokens());
  image_.patches.mask_token = head == ImageHead::kMasked;
  if (stage().has_first()) {
    embeddings_ = register_module("embeddings", PatchEmbedding(image_.patches));
  }
  layers_ = register_module(
      "layers", make_layers(context_, config.layers, stage().own()));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count());
    make_end();
  }
}

void ImageEncoder::make_end() {
  norm_ = register_module("norm", Norm(image_.norm));
  const int64_t features = image_.norm.features;
  // Every rank computes these from whole hidden states.
  const auto whole = [&](const char* name, int64_t outputs) {
    return Linear::column(
        *this,
        name,
        LayerContext(),
        {features, outputs, true, 1, image_.deviation});
  };
  switch (head_kind_) {
    case ImageHead::kBase:
      if (image_.pooler_features > 0) {
        pooler_ = whole("pooler", image_.pooler_features);
      }
      break;
    case ImageHead::kClassification:
      classifier_ = whole("classifier", image_.classifier.labels);
      break;
    case ImageHead::kMasked:
      decoder_ = register_module(
          "decoder",
          PixelDecoder(PixelDecoderOptions{
              features,
              image_.patches.channels,
              image_.encoder_stride,
              image_.deviation}));
      break;
  }
}

std::unique_ptr<Head> ImageEncoder::head() {
  return image_head(head_kind_, image_.patches, image_.classifier);
}

void ImageEncoder::check(const ModelInput& input) const {
  check_image_arguments(input, head_kind_);
  if (stage().has_first()) {
    embeddings_->check(input.pixel_values, interpolates(input));
    check_divides_tokens(
        context_,
        image_.patches.grid(image_size_of(input.pixel_values)).area() + 1);
  }
}

LayerState ImageEncoder::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  if (begin == 0) {
    state.hidden = context_.dropout(
        context_.between(
            embeddings_->forward(input.pixel_values, masked_patches(input))),
        image_.embedding_dropout,
        is_training());
  }
  run_range(layers_, begin, end, {}, input.hidden_states, state);
  return state;
}

ModelOutput ImageEncoder::output(
    const ModelInput& input,
    const LayerState& state) {
  ModelOutput output;
  if (input.hidden_states) {
    for (const at::Tensor& entered : state.entered) {
      output.hidden_states.push_back(context_.whole(entered));
    }
    output.hidden_states.push_back(context_.whole(state.hidden));
  }
  const at::Tensor last = context_.whole(norm_->forward(state.hidden));
  switch (head_kind_) {
    case ImageHead::kBase:
      output.last_hidden_state = last;
      if (image_.pooler_features > 0) {
        output.pooler_output = activation(image_.pooler_activation)(
            pooler_.forward(last.select(1, 0)));
      }
      break;
    case ImageHead::kClassification:
      add_image_classes(
          input,
          classifier_.forward(last.select(1, 0)),
          image_.classifier,
          output);
      break;
    case ImageHead::kMasked:
      add_reconstruction(
          input,
          decoder_->forward(last.slice(1, 1)),
          image_.patches.patch,
          output);
  }
  return output;
}

} // namespace tessera::zoo
