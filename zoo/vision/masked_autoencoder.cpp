// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/masked_autoencoder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/heads/patch_heads.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/layer_stack.h"
#include "tessera/zoo/vision/image_fields.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace {

/// The permutation of patches by noise, and its inverse.
struct PatchOrder {
  explicit PatchOrder(const at::Tensor& noise)
      : by_noise(at::argsort(noise, int64_t{1})),
        restore(at::argsort(by_noise, int64_t{1})) {}

  /// 1 for all but the first `seen`, in the image's order.
  at::Tensor mask(int64_t seen) const {
    return restore.ge(seen).to(at::kFloat);
  }

  at::Tensor by_noise; ///< int64 [B, patches]
  at::Tensor restore;
};

/// Selects rows of x [B, S, features] by their indices [B, n].
at::Tensor rows_of(const at::Tensor& x, const at::Tensor& numbers) {
  return x.gather(1, numbers.unsqueeze(-1).expand({-1, -1, x.size(2)}));
}

/// [B, channels, H, W] -> [B, patches, pixels of a patch with its channels].
at::Tensor pixels_of_patches(const at::Tensor& pixels, const ImageSize& patch) {
  return pixels.unflatten(2, {-1, patch.height})
      .unflatten(4, {-1, patch.width})
      .permute({0, 2, 4, 3, 5, 1})
      .flatten(3)
      .flatten(1, 2);
}

/// As layer_costs(), times the number of tokens of each half.
std::vector<pipeline::LayerCost> costs_of(
    const MaskedAutoencoderConfig& config) {
  const int64_t tokens = config.patches.tokens();
  std::vector<pipeline::LayerCost> costs = layer_costs(config.encoder);
  for (pipeline::LayerCost& cost : costs) {
    cost.time *= static_cast<double>(1 + config.seen_patches(tokens - 1));
  }
  for (pipeline::LayerCost cost : layer_costs(config.decoder)) {
    cost.time *= static_cast<double>(tokens);
    costs.push_back(cost);
  }
  return costs;
}

} // namespace

int64_t MaskedAutoencoderConfig::seen_patches(int64_t patches) const {
  return static_cast<int64_t>(static_cast<double>(patches) * (1 - mask_ratio));
}

MaskedAutoencoder::MaskedAutoencoder(
    const MaskedAutoencoderConfig& config,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : LayeredModel(
          context,
          std::move(json),
          std::move(names),
          costs_of(config),
          {"decoder."}),
      config_(config),
      encoder_layers_(static_cast<int>(config.encoder.size())) {
  check_divides(config.patches.tokens() - 1);
  if (stage().has_first()) {
    embeddings_ = register_module("embeddings", PatchEmbedding(config.patches));
  }
  const auto encoder = local_layers(0, config.encoder.size());
  const auto decoder = local_layers(encoder_layers_, config.decoder.size());
  if (!encoder.empty()) {
    layers_ = register_module(
        "layers", make_layers(context_, config.encoder, encoder));
  }
  if (has_decoder() ? stage().has(encoder_layers_) : stage().has_last()) {
    norm_ = register_module("norm", Norm(config.norm));
  }
  if (!decoder.empty()) {
    make_decoder(decoder);
  }
}

bool MaskedAutoencoder::has_decoder() const {
  return !config_.decoder.empty();
}

void MaskedAutoencoder::make_decoder(const std::vector<int>& numbers) {
  const auto decoder = register_module(
      "decoder", std::make_shared<torch::nn::Module>("Decoder"));
  const NormOptions& norm = config_.decoder.front().norm;
  const auto full = [&](const char* name, int64_t in, int64_t out) {
    return Linear::full(*decoder, name, {in, out, true, 1, config_.deviation});
  };
  if (numbers.front() == 0) {
    const sharding::NumberedInit init(stage().count());
    decoder_embedding_ =
        full("embedding", config_.norm.features, norm.features);
    mask_token_ = decoder->register_parameter(
        "mask_token",
        torch::empty({1, 1, norm.features}).normal_(0, config_.deviation));
    positions_ = decoder->register_parameter(
        "positions",
        grid_positions(
            config_.patches.grid(config_.patches.image), norm.features),
        /*requires_grad=*/false);
  }
  decoder_layers_ = decoder->register_module(
      "layers",
      make_layers(context_, config_.decoder, numbers, encoder_layers_));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count() + 1);
    decoder_norm_ = decoder->register_module("norm", Norm(norm));
    prediction_ = full(
        "prediction",
        norm.features,
        config_.patches.patch.area() * config_.patches.channels);
  }
}

std::unique_ptr<Head> MaskedAutoencoder::head() {
  return has_decoder() ? std::make_unique<AutoencoderHead>(config_.patches)
                       : nullptr;
}

void MaskedAutoencoder::check(const ModelInput& input) const {
  constexpr std::array<std::string_view, 3> kTaken = {
      "pixel_values", "interpolate_pos_encoding", "noise"};
  check_not_taken(input, kTaken);
  if (stage().has_first()) {
    embeddings_->check(input.pixel_values, interpolates(input));
    check_divides(
        config_.patches.grid(image_size_of(input.pixel_values)).area());
  }
}

void MaskedAutoencoder::check_divides(int64_t patches) const {
  check_divides_tokens(config_.seen_patches(patches) + 1);
  if (has_decoder()) {
    check_divides_tokens(patches + 1);
  }
}

void MaskedAutoencoder::embed(const ModelInput& input, LayerState& state) {
  at::Tensor x = embeddings_->patches(input.pixel_values);
  const auto given = input.others.find("noise");
  if (given != input.others.end()) {
    state.memory = given->second;
    TESSERA_CHECK(
        state.memory.sizes() == x.sizes().slice(0, 2),
        "noise is {}; for these images it must be {}",
        state.memory.sizes(),
        x.sizes().slice(0, 2));
  } else {
    state.memory =
        at::rand({x.size(0), x.size(1)}, x.options().dtype(at::kFloat));
  }
  const at::Tensor positions =
      embeddings_->positions(image_size_of(input.pixel_values));
  x = x + positions.slice(1, 1);
  const at::Tensor seen =
      PatchOrder(state.memory)
          .by_noise.narrow(1, 0, config_.seen_patches(x.size(1)));
  state.hidden = context_.between(
      at::cat({embeddings_->class_tokens(x.size(0)), rows_of(x, seen)}, 1));
}

at::Tensor MaskedAutoencoder::decoder_positions(int64_t patches) const {
  const int64_t trained_patches = positions_.size(1) - 1;
  if (patches == trained_patches) {
    return positions_;
  }
  // As in transformers, which treats all patches as one row.
  const at::Tensor row =
      positions_.slice(1, 1).transpose(1, 2).unsqueeze(2); // [1, f, 1, own]
  const at::Tensor resized =
      at::upsample_bicubic2d(row, {1, patches}, /*align_corners=*/false);
  return at::cat(
      {positions_.narrow(1, 0, 1), resized.squeeze(2).transpose(1, 2)}, 1);
}

void MaskedAutoencoder::start_decoder(
    const ModelInput& input,
    LayerState& state) {
  if (input.hidden_states) {
    state.entered.push_back(state.hidden); // the encoder's result
  }
  const at::Tensor seen =
      decoder_embedding_.forward(context_.full(norm_->forward(state.hidden)));
  const PatchOrder order(state.memory);
  const int64_t patches = order.restore.size(1);
  const at::Tensor missing =
      mask_token_.expand({seen.size(0), patches + 1 - seen.size(1), -1});
  const at::Tensor all =
      rows_of(at::cat({seen.slice(1, 1), missing}, 1), order.restore);
  state.hidden = context_.between(
      at::cat({seen.narrow(1, 0, 1), all}, 1) + decoder_positions(patches));
}

LayerState MaskedAutoencoder::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  if (begin == 0) {
    embed(input, state);
  }
  if (begin < encoder_layers_) {
    run_range(
        layers_,
        begin,
        std::min(end, encoder_layers_),
        {},
        input.hidden_states,
        state);
  }
  if (end > encoder_layers_) {
    if (begin <= encoder_layers_) {
      start_decoder(input, state);
    }
    run_range(
        decoder_layers_,
        std::max(begin - encoder_layers_, 0),
        end - encoder_layers_,
        {},
        /*entered=*/false,
        state);
  }
  return state;
}

ModelOutput MaskedAutoencoder::output(
    const ModelInput& input,
    const LayerState& state) {
  ModelOutput output;
  output.hidden_states = hidden_states(state.entered);
  const PatchOrder order(state.memory);
  const at::Tensor mask =
      order.mask(config_.seen_patches(order.restore.size(1)));
  output.others = {{"mask", mask}, {"ids_restore", order.restore}};
  if (!has_decoder()) {
    if (input.hidden_states) {
      output.hidden_states.push_back(context_.full(state.hidden));
    }
    output.last_hidden_state = context_.full(norm_->forward(state.hidden));
    return output;
  }
  output.logits =
      prediction_.forward(context_.full(decoder_norm_->forward(state.hidden)))
          .slice(1, 1);
  output.loss = loss(input.pixel_values, output.logits, mask);
  return output;
}

at::Tensor MaskedAutoencoder::loss(
    const at::Tensor& pixels,
    const at::Tensor& logits,
    const at::Tensor& mask) const {
  // Sums over all patches are too large for 16 bits.
  const auto type = at::promote_types(logits.scalar_type(), at::kFloat);
  at::Tensor target = pixels_of_patches(pixels.to(type), config_.patches.patch);
  if (config_.normalised_pixels) {
    target =
        (target - target.mean(-1, true)) /
        (target.var(-1, /*unbiased=*/true, /*keepdim=*/true) + 1e-6).sqrt();
  }
  const at::Tensor squares = (logits.to(type) - target).square().mean(-1);
  return (squares * mask).sum() / mask.sum();
}

} // namespace tessera::zoo
